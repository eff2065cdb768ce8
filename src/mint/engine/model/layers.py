"""The decoder layers of a base model: compiled on a GPU, and recomputed in long backward passes."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mint.engine.model.context import active, running
from mint.engine.model.pauses import pause_at
from mint.engine.model.sampled_trunk import SampledTrunk

_RECOMPILES = 64  # variants of a layer: training, prefill, decoding; by window, slots and size


def wrap_layers(trunk: nn.Module, compiled: bool) -> None:
    """Wrap every decoder layer of a model, and the model itself where kernels can run it.

    All layers of one class share their compiled code, so compiling takes as long as for one layer.
    """
    if compiled:
        torch._dynamo.config.recompile_limit = _RECOMPILES
        torch._dynamo.config.accumulated_recompile_limit = 16 * _RECOMPILES
    for layer in decoder_layers(trunk):
        forward = torch.compile(layer.forward) if compiled else layer.forward
        layer.forward = _pausing(_recomputable(forward))
    if SampledTrunk.is_possible(trunk):
        trunk.forward = SampledTrunk(trunk).wrap(trunk.forward)


def decoder_layers(trunk: nn.Module) -> list[nn.Module]:
    """Return the layers of a decoder: its longest list of modules."""
    lists = [list(child) for child in trunk.children() if isinstance(child, nn.ModuleList)]
    return max(lists, key=len, default=[])


def _pausing(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        pause_at(hidden)
        return forward(hidden, *args, **kwargs)

    return run


def _recomputable(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        current = active()
        if not (current.recompute and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), running(current.attention, current.lora)),
            **kwargs,
        )

    return run
