"""Answers to questions: numbers, formulas, and where the final answer is."""
