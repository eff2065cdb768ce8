"""Evaluation: pass@k on a holdout, comparisons, and the search for the step that broke a run.

Nothing here trains a model.
"""
