"""Agent Tunix's names for mint's parts."""
