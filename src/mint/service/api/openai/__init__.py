"""Inference for clients of the OpenAI API: text in and out, without sessions and tokens.

The routes of the Tinker protocol are in ``routes``.
"""
