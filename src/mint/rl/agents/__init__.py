"""Agents: environments, conversations, tools and tool calls."""
