"""What a run leaves behind: its run directory, rollout tables and reward reports."""
