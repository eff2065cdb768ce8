"""Shaping: composed rewards, penalties, formats, instructions, normalisation.

Nothing here calls a model or runs code.
"""
