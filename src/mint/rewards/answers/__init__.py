"""Answers to questions: numbers, formulas, and where the final answer is.

Scores that combine several checks are in ``shaping``.
"""
