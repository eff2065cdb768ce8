"""Text and tokens: tokenizers and chat templates read from a model folder, and streamed text."""
