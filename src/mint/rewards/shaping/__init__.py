"""Shaping: rewards made of rewards, penalties, formats, instructions, normalisation."""
