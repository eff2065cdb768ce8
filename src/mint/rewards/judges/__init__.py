"""Judges: language models that score or compare answers, and trained reward models."""
