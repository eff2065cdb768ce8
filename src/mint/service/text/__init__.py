"""Text and tokens: tokenizers and chat templates read from a model folder, and streamed text.

The OpenAI routes that use them are in ``api/openai``.
"""
