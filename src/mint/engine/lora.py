"""LoRA: the adapter of one run, and the layers that add it to a frozen base model.

A wrapped layer computes ``W x + (alpha / rank) B A x`` for the rows of the flat token row that
belong to an adapter. Which rows those are is said by the active *routes*, so that one pass of the
base model serves several adapters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from .messages import LoraSpec, UserError
from .precision import FrozenLinear, apply_linear

_ATTENTION_NAMES = {"attn", "attention", "self_attn", "self_attention"}
_ROUTER_NAMES = {"router", "gate"}
MAX_RANK = 1024

Rows = slice | Tensor
EVERY_ROW = slice(None)


@dataclass(frozen=True, eq=False)
class Adapter:
    """The LoRA tensors of one run: for each layer, A [rank, in] and B [out, rank]."""

    spec: LoraSpec
    pairs: dict[str, tuple[Tensor, Tensor]]

    @property
    def scale(self) -> float:
        return self.spec.alpha / self.spec.rank

    def parameters(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [tensor for name in sorted(self.pairs) for tensor in self.pairs[name]]

    def frozen_copy(self, device: torch.device) -> Adapter:
        """A snapshot that later training does not touch."""
        return Adapter(
            self.spec,
            {
                name: (a.detach().to(device, copy=True), b.detach().to(device, copy=True))
                for name, (a, b) in self.pairs.items()
            },
        )


@dataclass(frozen=True)
class Route:
    """The rows of the flat token row that an adapter applies to."""

    adapter: Adapter
    rows: Rows


_active: Sequence[Route] = ()


@contextmanager
def routing(routes: Sequence[Route]) -> Iterator[None]:
    """Apply these adapters in every wrapped layer."""
    global _active
    _active = routes
    try:
        yield
    finally:
        _active = ()


class LoraLayer(nn.Module):
    """A frozen linear layer of the base model, with the adapters that are active."""

    def __init__(self, name: str, base: FrozenLinear) -> None:
        super().__init__()
        self.name = name
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        output = apply_linear(self.base, x)
        for route in _active:
            output = self._add(output, x, route)
        return output

    def _add(self, output: Tensor, x: Tensor, route: Route) -> Tensor:
        pair = route.adapter.pairs.get(self.name)
        if pair is None:
            return output
        if route.rows is EVERY_ROW:
            return add_lora(output, x, pair, route.adapter.scale)
        flat = output.flatten(0, -2)
        rows = x.flatten(0, -2)[route.rows]
        flat[route.rows] = add_lora(flat[route.rows], rows, pair, route.adapter.scale)
        return output


def add_lora(output: Tensor, x: Tensor, pair: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """``output + scale * B A x`` over the last dimension."""
    a, b = pair
    flat = torch.addmm(output.flatten(0, -2), x.flatten(0, -2) @ a.T, b.T, alpha=scale)
    return flat.view_as(output)


@dataclass(frozen=True)
class Site:
    """A layer that an adapter can train: where it is and its size."""

    name: str
    kind: str  # "attn", "mlp" or "unembed"
    inputs: int
    outputs: int


def find_sites(model: nn.Module, head_name: str) -> list[Site]:
    """The linear layers of a decoder, by the flag that trains them."""
    sites = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D):
            continue
        inputs, outputs = (
            module.weight.shape if isinstance(module, Conv1D) else module.weight.T.shape
        )
        parts = name.split(".")
        if name == head_name:
            sites.append(Site(name, "unembed", inputs, outputs))
        elif any(part.isdigit() for part in parts) and not _ROUTER_NAMES.intersection(parts):
            kind = "attn" if _ATTENTION_NAMES.intersection(parts) else "mlp"
            sites.append(Site(name, kind, inputs, outputs))
    return sites


def wrap_sites(model: nn.Module, sites: list[Site]) -> None:
    """Put a :class:`LoraLayer` around every site but the head (which the model applies itself)."""
    for site in sites:
        if site.kind != "unembed":
            parent_name, _, child = site.name.rpartition(".")
            parent = model.get_submodule(parent_name)
            setattr(parent, child, LoraLayer(site.name, getattr(parent, child)))


def new_adapter(spec: LoraSpec, sites: list[Site], device: torch.device) -> Adapter:
    """A fresh adapter: A random from the seed, B zero, so that it changes nothing yet."""
    chosen = _chosen_sites(spec, sites)
    generator = torch.Generator()
    if spec.seed is None:
        generator.seed()
    else:
        generator.manual_seed(spec.seed)
    pairs = {}
    for site in chosen:
        bound = 1 / math.sqrt(site.inputs)
        a = torch.empty(spec.rank, site.inputs).uniform_(-bound, bound, generator=generator)
        b = torch.zeros(site.outputs, spec.rank)
        pairs[site.name] = (a.to(device).requires_grad_(), b.to(device).requires_grad_())
    return Adapter(spec, pairs)


def _chosen_sites(spec: LoraSpec, sites: list[Site]) -> list[Site]:
    if not 1 <= spec.rank <= MAX_RANK:
        raise UserError(
            f"rank is {spec.rank}, but a LoRA rank is a whole number from 1 to {MAX_RANK}. "
            "Try rank=16."
        )
    flags = {"attn": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
    if not any(flags.values()):
        raise UserError(
            "train_attn, train_mlp and train_unembed are all false, so there is nothing to train. "
            "Set at least one of them."
        )
    for kind, wanted in flags.items():
        if wanted and not any(site.kind == kind for site in sites):
            raise UserError(
                f"train_{kind} is set, but this model has no {kind} layer that LoRA can train "
                f"(fused expert weights, for one, are not linear layers). Set train_{kind}=False."
            )
    return [site for site in sites if flags[site.kind]]
