"""Sample and score the groups of a step, up to several steps ahead of training.

A single rollout is in ``rollouts``.
"""
