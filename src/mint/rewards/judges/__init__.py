"""Judges: language models that score or compare answers, and trained reward models.

Rewards by rules are in ``answers`` and ``shaping``.
"""
