"""Sampling sessions: weights and their digests, samples in progress, evicted samplers on disk.

Picking tokens is done by engines (:mod:`mint.engine.sampling`).
"""
