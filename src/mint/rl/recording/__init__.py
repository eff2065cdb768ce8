"""The files of a run: its run directory, rollout tables and reward reports."""
