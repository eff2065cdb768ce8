"""Groups of answers: sampled, scored as they arrive, and sampled ahead of training."""
