"""Sampling: the scheduler, blocks of keys and values, decoding, and picking tokens."""
