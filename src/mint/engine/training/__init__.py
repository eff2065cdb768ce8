"""Training: datums packed as prefix trees, passes, losses, and the optimizer."""
