"""Attention: our function in place of transformers', and its implementations by device.

A model runs on one flat row of tokens, whatever sequences they belong to. The active pass
determines what each token sees: a prefix tree in training, blocks of the key-value pool in
sampling. The CPU's implementations use torch alone; the GPU's are Triton kernels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from mint.engine.model.context import Attention, Scores, active
from mint.engine.model.precision import Precision
from mint.engine.sampling.kv_pool import KVPool
from mint.engine.training.tree import PrefixTree

from .blocked import BlockedAttention
from .layout import Chunk
from .native import NativeTree
from .paged import PagedAttention
from .reference import ReferenceTree

NAME = "mint"


class OwnMask(Exception):
    """A model has created an attention mask of its own, which this attention would ignore."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if attention_mask is not None:
        raise OwnMask
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [N, heads, D]
    scale = kwargs.get("scaling")
    how = Scores(
        scale if scale is not None else q.shape[-1] ** -0.5,
        kwargs.get("sliding_window") or 0,
        kwargs.get("softcap") or 0.0,
        kwargs.get("s_aux"),
    )
    return active().attention.attend(module, q, k, v, how)[None], None


AttentionInterface.register(NAME, _attention)  # and no mask: transformers then makes none


def tree_attention(tree: PrefixTree, device: torch.device, precision: Precision) -> Attention:
    """Return the attention of a training pass: each node sees its ancestors."""
    if device.type == "cuda":
        from .gpu import KernelTree

        return KernelTree.of(tree, device, precision.keys)
    return NativeTree(tree, precision.keys) if precision.has_kernels else ReferenceTree(tree)


def pool_attention(pool: KVPool, chunks: list[Chunk], has_kernels: bool) -> Attention:
    """Return the attention of a pass over chunks of prompts or, on a CPU, of answers."""
    if pool.device.type == "cuda":
        from .gpu import KernelPrefill

        return KernelPrefill.of(pool, chunks)
    return PagedAttention(chunks) if has_kernels else BlockedAttention(chunks)
