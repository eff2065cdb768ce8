"""Rollouts: the policy, sampling groups of answers, and scoring them.

The order in which groups are sampled is in ``sampling``.
"""
