"""The pool of keys and values: one tensor per attention layer, cut into blocks of tokens."""

import torch
from torch import Tensor, nn

from mint.engine.native import huge_pages

BLOCK_SIZE = 16


class KVPool:
    """Keys and values [2, blocks, Hkv, BLOCK_SIZE, D] of each attention layer.

    Block 0 is never given to a sequence: rows that only fill a batch write there.
    """

    def __init__(
        self,
        shapes: dict[nn.Module, tuple[int, int]],
        blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.blocks = blocks
        self.device = device
        self._layers = {
            module: torch.zeros(2, blocks, heads, BLOCK_SIZE, size, dtype=dtype, device=device)
            for module, (heads, size) in shapes.items()
        }
        if device.type == "cpu":
            for layer in self._layers.values():
                huge_pages.advise(layer)

    def bind(self) -> None:
        """Let the attention modules of the model use this pool in the passes that follow.

        A compiled layer takes the tensor from its own module: that way one compilation serves all.
        """
        for module, layer in self._layers.items():
            module.__dict__["kv_pool"] = layer

    @staticmethod
    def bytes_per_token(shapes: dict[nn.Module, tuple[int, int]], dtype: torch.dtype) -> int:
        """Return the bytes that the keys and values of one token take, over all layers."""
        return sum(2 * heads * size * dtype.itemsize for heads, size in shapes.values())

    def layers(self) -> list[Tensor]:
        """Return the tensors, in the order of the layers."""
        return list(self._layers.values())


def find_pool(module: nn.Module) -> Tensor:
    """Return the keys and values of an attention module's layer."""
    return module.kv_pool  # type: ignore[return-value]
