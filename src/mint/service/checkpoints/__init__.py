"""Checkpoints as files: saving, PEFT folders, archives, transfers, links, retention.

Snapshots of a run, which let its journal be cut, are in ``runs``.
"""
