"""Sampling sessions: weights and their digests, samples in progress, evicted samplers on disk."""
