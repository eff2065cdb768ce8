"""LoRA: the adapter of one run, and the bank of adapters that samplers use together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mint.engine.messages import LoraSpec, UserError
from mint.engine.model.context import BankedLora, Lora, NoLora, TrainedLora
from mint.engine.model.experts import Product, find_expert_sites
from mint.engine.model.linear import Site

_ATTENTION_NAMES = {"attn", "attention", "self_attn", "self_attention"}
_ROUTER_NAMES = {"router", "gate", "shared_expert_gate"}
MAX_RANK = 1024
MAX_SLOTS = 16  # adapters that decode together; more take turns
_ALIGNMENT = 16  # numbers: kernels that load several at a time want tensors to begin so


@dataclass(frozen=True, eq=False)
class Adapter:
    """The LoRA tensors of one run: for each layer, A [rank, in] and B [out, rank].

    Experts have A [experts * rank, in] and B [out, rank * experts], in PEFT's order of entries.
    """

    spec: LoraSpec
    pairs: dict[str, tuple[Tensor, Tensor]]
    digest: str | None = None  # set for frozen adapters: see :mod:`.digest`
    storage: Tensor | None = None  # one buffer that all tensors are views of, to copy at once

    @property
    def scale(self) -> float:
        return self.spec.alpha / self.spec.rank

    def experts(self) -> list[str]:
        """Return the names of the pairs that have a part for each expert."""
        return [name for name, (a, _) in self.pairs.items() if a.shape[0] > self.spec.rank]

    def parameters(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        return [tensor for name in sorted(self.pairs) for tensor in self.pairs[name]]

    def frozen_copy(self, device: torch.device) -> Adapter:
        """Copy the adapter: later training does not touch the copy."""
        tensors = [tensor.detach() for pair in self.pairs.values() for tensor in pair]
        if self.storage is None:
            storage = torch.zeros(sum(map(_padded_size, tensors)), device=device)
        else:
            storage = self.storage.to(device, copy=True)
        parts = torch.split(storage, [*map(_padded_size, tensors)])
        views = [
            part[: tensor.numel()].view_as(tensor)
            for part, tensor in zip(parts, tensors, strict=True)
        ]
        if self.storage is None:
            torch._foreach_copy_(views, tensors)
        pairs = dict(zip(self.pairs, zip(views[::2], views[1::2], strict=True), strict=True))
        return Adapter(self.spec, pairs, storage=storage)

    def trainable_copy(self, device: torch.device) -> Adapter:
        """Copy the adapter into tensors that take gradients."""
        copy = self.frozen_copy(device)
        for parameter in copy.parameters():
            parameter.requires_grad_()
        return copy

    def train_on(self, products: Mapping[str, Product]) -> Lora:
        """Give the layers this adapter to train."""
        for product in products.values():
            pairs = [self.pairs[site.name] for site in product.sites if site.name in self.pairs]
            product.pairs = tuple(t for pair in pairs for t in pair)
        # Filled on the device: a copy of a number would wait for what runs there.
        return TrainedLora(self.parameters()[0].new_full((), self.scale))


class AdapterBank:
    """Adapters in slots, stacked so that one product serves the rows of all of them.

    Slots and rank grow as adapters need them; ``generation`` counts how often the tensors moved.
    """

    def __init__(self, products: Mapping[str, Product]) -> None:
        self.generation = 0
        self.writes = 0  # into slots: remembered slots are out of date when this grows
        self._products = products
        self._slots: list[Adapter | None] = []
        self._rank = 0
        self._trained: set[str] = set()  # sites; products without any of them have no bank

    @property
    def slots(self) -> int:
        """The number of slots there are."""
        return len(self._slots)

    def use(self, adapters: Iterable[Adapter]) -> dict[Adapter, int]:
        """Put these adapters into slots (at most ``MAX_SLOTS``) and return the slot of each."""
        wanted = list(dict.fromkeys(adapters))
        rank = max((adapter.spec.rank for adapter in wanted), default=0)
        sites = {name for a in wanted if a not in self._slots for name in a.pairs}
        if len(wanted) > len(self._slots) or rank > self._rank or not sites <= self._trained:
            self._trained |= sites
            self._grow(len(wanted), rank)
        missing = [adapter for adapter in wanted if adapter not in self._slots]
        free = [slot for slot, held in enumerate(self._slots) if held not in wanted]
        for adapter, slot in zip(missing, free, strict=False):
            self._write(adapter, slot)
        return {adapter: self._slots.index(adapter) for adapter in wanted}

    def rows(self, adapters: list[Adapter | None], device: torch.device) -> Lora:
        """Return what a pass needs whose rows use these adapters."""
        slots = self.use(adapter for adapter in adapters if adapter is not None)
        if not slots:
            return NoLora()
        is_shared = len(slots) == 1 and None not in adapters  # one adapter for all rows
        if is_shared and 0 in slots.values():
            return BankedLora(1, None)
        used = max(slots.values()) + 1
        owners = torch.tensor([-1 if a is None else slots[a] for a in adapters], device=device)
        mask = (owners[:, None] == torch.arange(used, device=device)).float()
        if device.type == "cuda":
            return BankedLora(used, mask)
        return BankedLora(used, mask, used - 1 if is_shared else owners)

    def forget(self, adapter: Adapter) -> None:
        """Free the slot of an adapter that no sampler uses any more."""
        self._slots = [None if held is adapter else held for held in self._slots]

    def _grow(self, slots: int, rank: int) -> None:
        slots = max(len(self._slots), 1 << (slots - 1).bit_length())
        rank = max(self._rank, rank)
        # Should memory run out on the way, nothing counts as loaded and the next use tries again.
        self._slots, self._rank = [], 0
        self.generation += 1
        self.writes += 1
        for product in self._banked():
            product.new_bank(slots, rank)
        self._slots, self._rank = [None] * slots, rank

    @torch.no_grad()
    def _write(self, adapter: Adapter, slot: int) -> None:
        """Write an adapter into a slot, all layers by one call: many calls would cost more."""
        self._slots[slot] = None
        scaled = torch._foreach_mul([b for _, b in adapter.pairs.values()], adapter.scale)
        pairs = {
            name: (a, b) for (name, (a, _)), b in zip(adapter.pairs.items(), scaled, strict=True)
        }
        copies = [copy for product in self._banked() for copy in product.write_slot(slot, pairs)]
        if copies:
            torch._foreach_copy_([target for target, _ in copies], [source for _, source in copies])
        self._slots[slot] = adapter
        self.writes += 1

    def _banked(self) -> list[Product]:
        """Return the products that some adapter trains."""
        products = self._products.values()
        return [p for p in products if any(site.name in self._trained for site in p.sites)]


def find_sites(model: nn.Module, head_name: str) -> list[Site]:
    """Find the linear layers and experts of a decoder, each with the flag that trains it."""
    sites = []
    for name, module in model.named_modules():
        sites += find_expert_sites(name, module)
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


def new_adapter(spec: LoraSpec, sites: list[Site], device: torch.device) -> Adapter:
    """Create an adapter: A random from the seed, B zero, so that it changes nothing yet."""
    chosen = _chosen_sites(spec, sites)
    generator = torch.Generator()
    if spec.seed is None:
        generator.seed()
    else:
        generator.manual_seed(spec.seed)
    pairs = {}
    for site in chosen:
        bound, height = 1 / math.sqrt(site.inputs), site.height(spec.rank)
        a = torch.empty(height, site.inputs).uniform_(-bound, bound, generator=generator)
        b = torch.zeros(site.outputs, height)
        pairs[site.name] = (a, b)
    return Adapter(spec, pairs).trainable_copy(device)


def _padded_size(tensor: Tensor) -> int:
    return -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT


def _chosen_sites(spec: LoraSpec, sites: list[Site]) -> list[Site]:
    if not 1 <= spec.rank <= MAX_RANK:
        raise UserError(
            f"rank is {spec.rank}, but a LoRA rank is an integer from 1 to {MAX_RANK}. Try rank=16."
        )
    if spec.seed is not None and not -(2**63) <= spec.seed < 2**64:
        raise UserError(f"seed is {spec.seed}, but it must fit 64 bits. Try seed=1.")
    flags = {"attn": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
    if not any(flags.values()):
        raise UserError(
            "train_attn, train_mlp and train_unembed are all false, so there is nothing to train. "
            "Set at least one of them."
        )
    for kind, wanted in flags.items():
        if wanted and not any(site.kind == kind for site in sites):
            raise UserError(
                f"train_{kind} is set, but this model has no {kind} layer that LoRA can train. "
                f"Set train_{kind}=False."
            )
    return [site for site in sites if flags[site.kind]]
