"""Sample and score the groups of a step, up to several steps ahead of training."""
