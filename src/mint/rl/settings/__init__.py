"""The settings of a run: defaults, checks, warnings and schedules."""
