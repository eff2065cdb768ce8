"""The settings of a run: defaults, checks, warnings and schedules.

Composing them from files and the command line is in :mod:`mint.jobs`.
"""
