"""Checkpoints as files: saving, PEFT folders, archives, transfers, links, retention."""
