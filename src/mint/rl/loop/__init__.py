"""The GRPO loop: steps, updates, checkpoints, and what a run reports."""
