"""Samplers and samples: weights, their digests, queues, and evicted samplers on disk."""
