"""Sampling: the scheduler, blocks of keys and values, decoding, and picking tokens.

How a row attends to its blocks is in :mod:`mint.engine.attention`.
"""
