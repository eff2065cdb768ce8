"""Inference for clients of the OpenAI API: text in, text out, no session and no tokens."""
