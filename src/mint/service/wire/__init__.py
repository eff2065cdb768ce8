"""Encodings of the protocol: request bodies, request models, tensors. Independent of runs."""
