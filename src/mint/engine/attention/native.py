"""Attention in a prefix forest by the kernels for CPUs."""

from functools import cached_property

import torch
from torch import Tensor, nn

from mint.engine.model.context import Scores
from mint.engine.native.training import LANES, Forest, TreeAttention
from mint.engine.training.tree import PrefixTree

from .reference import ReferenceTree, cut, visible

_SHORTEST, _LONGEST = 8, 32  # nodes of a block


class NativeTree:
    """Each node of a prefix forest sees its ancestors, with keys and values of a format."""

    def __init__(self, tree: PrefixTree, keys: torch.dtype) -> None:
        blocks = cut(tree, _SHORTEST, _LONGEST)
        seen = [visible(tree, *block) for block in blocks]
        self.forest = Forest(tree, blocks, seen, rounds=keys == torch.float16)
        self._tree = tree

    @cached_property
    def _plain(self) -> ReferenceTree:
        """The same in torch, for soft caps, sinks and odd sizes."""
        return ReferenceTree(self._tree)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        if how.softcap or how.sinks is not None or q.shape[-1] % LANES:
            k, v = (_rounded(x) if self.forest.rounds else x for x in (k, v))
            return self._plain.attend(module, q, k, v, how)
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        return TreeAttention.apply(self.forest, how.window, how.scale, q, k, v)  # type: ignore[no-any-return, no-untyped-call]


def _rounded(x: Tensor) -> Tensor:
    """Round to float16, as the pool of the sampler does; the gradient is that of x."""
    most = torch.finfo(torch.float16).max
    return x + (x.clamp(-most, most).half().float() - x).detach()
