"""Rollouts: the policy, sampling groups of answers, and scoring them."""
