"""Encodings of the protocol: request bodies, request models, tensors. Nothing here knows a run."""
