"""Agents: environments, conversations and tools.

How messages and tool calls are written by a model family is in ``messages``.
"""
