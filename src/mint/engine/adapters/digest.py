"""The digest of an adapter: adapters with the same digest have the same bits.

It is computed for every sampler, so it must be cheap on the device that has the adapter. The bits
are first reduced there: each row of ``_WIDTH`` numbers to its product with fixed odd factors,
modulo 2**64. If one number of a row changes, so does the product; if several change, it stays the
same with a probability of about 2**-63. This guards against mistakes, not against malice.
"""

import hashlib
import struct

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters.lora import Adapter

_WIDTH = 4096
_ROWS = 1024  # at a time
_FACTORS = np.frombuffer(hashlib.shake_256(b"mint").digest(8 * _WIDTH), "<i8") | 1


def compute_digest(adapter: Adapter) -> str:
    """Return a SHA-256 over an adapter's scale, names, shapes and reduced values, in hex."""
    digest = hashlib.sha256(struct.pack("<Id", adapter.spec.rank, adapter.scale))
    values = []
    for name in sorted(adapter.pairs):
        digest.update(struct.pack("<I", len(name.encode())) + name.encode())
        for tensor in adapter.pairs[name]:
            digest.update(struct.pack("<II", *tensor.shape))
            values.append(tensor.detach().float().reshape(-1))
    digest.update(_reduce(torch.cat(values)).cpu().numpy().astype("<i8").data)
    return digest.hexdigest()


def _reduce(values: Tensor) -> Tensor:
    """Return one integer for each row of the values' bits."""
    bits = values.view(torch.int32)
    rows = torch.nn.functional.pad(bits, (0, -len(bits) % _WIDTH)).view(-1, _WIDTH)
    factors = torch.tensor(_FACTORS, device=values.device)
    return torch.cat([(block.long() * factors).sum(1) for block in torch.split(rows, _ROWS)])
