"""The training command: a composed configuration, and the runs that it describes."""
