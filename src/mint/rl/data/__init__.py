"""Data: files and rows, datasets, prompts of each step, the split and the curriculum.

A task, which turns a row into a prompt and a reward, is ``mint/rl/task.py``.
"""
