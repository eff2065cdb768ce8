"""The digest of an adapter: two adapters with the same one have the same bits."""

from __future__ import annotations

import hashlib
import struct

from .lora import Adapter


def digest_of(adapter: Adapter) -> str:
    """Return the SHA-256 of an adapter's scale, names, shapes and float32 values, in hex."""
    digest = hashlib.sha256(struct.pack("<Id", adapter.spec.rank, adapter.scale))
    for name in sorted(adapter.pairs):
        digest.update(struct.pack("<I", len(name.encode())) + name.encode())
        for tensor in adapter.pairs[name]:
            digest.update(struct.pack("<II", *tensor.shape))
            digest.update(tensor.detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()
