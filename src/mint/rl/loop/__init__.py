"""The GRPO loop: steps, updates, checkpoints, and what a run reports.

What surrounds it, such as Ctrl-C, is in ``runtime``; its settings are in ``settings``.
"""
