"""Code shared by commands: the service they talk to, names of checkpoints, transfers, output.
No command is defined here."""
