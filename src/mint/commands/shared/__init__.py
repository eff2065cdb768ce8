"""What several commands use: the service they talk to, names of checkpoints, transfers, output.
No command is defined here."""
