"""Inference for clients of the OpenAI API: text in and out, without sessions and tokens."""
