"""The maths of RL: advantages, importance, KL and clipping, as pure functions of numbers.

Rollouts and datums, which these numbers belong to, have folders of their own.
"""
