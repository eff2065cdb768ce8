"""The maths of RL: advantages, credit, importance, KL, clipping and datums."""
