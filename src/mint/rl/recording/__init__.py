"""The files of a run: its run directory, rollout tables and reward reports.

Reading and displaying them is in :mod:`mint.watch`.
"""
