"""The frozen base model: layers, products, experts, the unembedding, precision and memory.

Attention has a folder of its own; converting files to a format that loads is ``convert.py``.
"""
