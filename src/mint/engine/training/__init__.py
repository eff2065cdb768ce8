"""Training: datums packed as prefix trees, passes, losses, and the optimizer.

Rewards and advantages are computed by clients (:mod:`mint.rl`) and arrive as numbers per token.
"""
