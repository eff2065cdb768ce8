"""Modules of transformers that training runs as one kernel each, on a CPU.

A module is recognized by its parts and by its results: it is replaced if the kernel computes the
same of random numbers. Passes whose attention is not :class:`NativeTree` run the module itself.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from mint.engine.attention import tree_attention
from mint.engine.attention.native import NativeTree
from mint.engine.model.context import Attention, NoLora, active, running
from mint.engine.model.linear import FrozenLinear
from mint.engine.model.precision import Precision
from mint.engine.native.training import LANES, Forest, Gated, Norm, TurnedAttention
from mint.engine.training.tree import pack

Forward = Callable[..., Any]
_PROBE_TOKENS = 24
_TOLERANCE = 0.02  # relative to the largest number: products are bfloat16


@torch.no_grad()
def fuse(model: nn.Module, precision: Precision) -> None:
    """Replace what the kernels can compute."""
    if not precision.has_kernels:
        return
    [tree] = pack([np.arange(_PROBE_TOKENS)], _PROBE_TOKENS)
    view = tree_attention(tree, torch.device("cpu"), precision)
    for module in model.modules():
        joint = getattr(module, "gate_proj", None) or getattr(module, "q_proj", None)
        fused = _find(module, joint)
        if fused is not None and _agrees(module, joint, fused, view):
            module.forward = _either(module.forward, fused)


def _find(module: nn.Module, joint: Any) -> Forward | None:
    """Return what may compute the same as a module, whose first product is ``joint``."""
    if not isinstance(joint, FrozenLinear):
        return _norm(module)
    if len(joint.sizes) == 2 and joint.sizes[0] % LANES == 0:
        return _gated(module, joint)
    if len(joint.sizes) == 3 and _is_plain_attention(module):
        return _attention(module, joint)
    return None


def _either(plain: Forward, fused: Forward) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        return (plain if _forest() is None else fused)(*args, **kwargs)

    return run


def _forest() -> Forest | None:
    attention = active().attention
    return attention.forest if isinstance(attention, NativeTree) else None


def _norm(module: nn.Module) -> Forward | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(eps, float) or not isinstance(weight, Tensor) or weight.dim() != 1:
        return None
    if len(weight) % LANES or not type(module).__name__.endswith("RMSNorm"):
        return None
    return lambda x: Norm.apply(x, weight, eps)  # type: ignore[no-untyped-call]


def _gated(module: nn.Module, joint: FrozenLinear) -> Forward:
    def run(x: Tensor) -> Tensor:
        inside = Gated.apply(joint.joint(x))  # type: ignore[no-untyped-call]
        return module.down_proj(inside.view(*x.shape[:-1], -1))  # type: ignore[operator, no-any-return]

    return run


def _is_plain_attention(module: nn.Module) -> bool:
    """Return whether only rotary positions lie between the projections and attention."""
    unknown = ("q_norm", "k_norm", "sliding_window", "attn_logit_softcapping", "sinks")
    size = getattr(module, "head_dim", None)
    return (
        isinstance(size, int)
        and size % (2 * LANES) == 0
        and hasattr(module, "o_proj")
        and isinstance(getattr(module, "scaling", None), float)
        and all(getattr(module, name, None) is None for name in unknown)
        and getattr(module.config, "sliding_window", None) is None
    )


def _attention(module: nn.Module, joint: FrozenLinear) -> Forward:
    size, plain = cast(int, module.head_dim), module.forward
    key_heads = joint.sizes[1] // size

    def run(
        hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], *rest: Any, **named: Any
    ) -> Any:
        if position_embeddings[0].shape[-1] != size:  # the kernel turns whole heads
            return plain(hidden_states, position_embeddings, *rest, **named)
        cosine, sine = (part[0].contiguous() for part in position_embeddings)
        settings = (_forest(), module.scaling, size, key_heads)
        rows = joint.joint(hidden_states)
        out = TurnedAttention.apply(*settings, rows, cosine, sine)  # type: ignore[no-untyped-call]
        return module.o_proj(out.view(*hidden_states.shape[:-1], -1)), None  # type: ignore[operator]

    return run


def _agrees(module: nn.Module, joint: Any, fused: Forward, view: Attention) -> bool:
    """Return whether a module and its replacement agree on random numbers."""
    generator = torch.Generator().manual_seed(0)
    width = len(module.weight) if joint is None else joint.weight.shape[1]  # type: ignore[arg-type]
    inputs: dict[str, Any] = {}
    if hasattr(module, "o_proj"):
        size: int = module.head_dim  # type: ignore[assignment]
        angles = torch.randn(2, 1, _PROBE_TOKENS, size, generator=generator)
        inputs["position_embeddings"] = tuple(angles)
        inputs["attention_mask"] = None
    x = torch.randn(1, _PROBE_TOKENS, width, generator=generator)
    with running(view, NoLora()):
        try:
            wanted, found = (run(x, **inputs) for run in (module.forward, fused))
            if isinstance(wanted, tuple):  # attention returns its weights too
                wanted, found = wanted[0], found[0]
            return bool((wanted - found).abs().max() <= _TOLERANCE * wanted.abs().max())
        except (TypeError, ValueError, RuntimeError):  # other arguments or sizes than we know
            return False
