"""Data: files and rows, datasets, prompts of each step, the split and the curriculum."""
