"""The context of a forward pass: which tokens attend to which, and which adapters are active.

The modules of transformers call our attention function and our linear layers without knowing of
either, so both read the pass that is active.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mint.engine.native import NO_ADAPTER, RowsBySlot


class Scores(NamedTuple):
    """How a layer scores keys. A window or soft cap of 0 is none."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None  # [H], of keys that everyone sees and that have no value


class Attention(Protocol):
    """Attention of the tokens of one pass to what each of them may see."""

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        """Attend with q [N, H, D] to k and v [N, Hkv, D]; return [N, H, D]."""
        ...


@dataclass(frozen=True)
class NoLora:
    """The bare base model."""


@dataclass(frozen=True)
class TrainedLora:
    """The adapter whose tensors the linear layers hold as ``pairs``, on every row."""

    scale: Tensor  # a number would be compiled into the layers, once for every rank


@dataclass(frozen=True)
class BankedLora:
    """Adapters in the slots of a bank, chosen row by row.

    ``mask`` [rows, slots] has a 1 where a row uses a slot; one of a single row is that of all rows,
    and None means that all rows use slot 0.
    ``owners`` are the same on a CPU: the slot of each row (-1 for none), or that of all rows.
    """

    slots: int
    mask: Tensor | None
    owners: Tensor | int = 0

    @cached_property
    def by_slot(self) -> RowsBySlot:
        """The same for the kernels of a CPU."""
        return RowsBySlot(self.owners)

    @cached_property
    def members(self) -> list[tuple[int, Tensor | None]]:
        """The slots in use on a CPU, each with the numbers of its rows; None is all rows."""
        if isinstance(self.owners, int):
            return [(self.owners, None)]
        slots = sorted({*self.owners.tolist()} - {-1})
        return [(slot, torch.nonzero(self.owners == slot).squeeze(1)) for slot in slots]


Lora = NoLora | TrainedLora | BankedLora


def by_slot(lora: Lora) -> RowsBySlot:
    """Return which rows use which slot, for the kernels of a CPU."""
    return lora.by_slot if isinstance(lora, BankedLora) else NO_ADAPTER


@dataclass(frozen=True)
class Pass:
    """One forward pass."""

    attention: Attention
    lora: Lora
    recompute: bool = False  # activations in the backward pass instead of keeping them


_active: Pass | None = None


@contextmanager
def running(attention: Attention, lora: Lora, recompute: bool = False) -> Iterator[None]:
    """Make this the pass that attention and linear layers use."""
    global _active
    before, _active = _active, Pass(attention, lora, recompute)
    try:
        yield
    finally:
        _active = before


def active() -> Pass:
    """Return the pass that is running."""
    assert _active is not None, "a base model runs through mint.engine.model.base_model"
    return _active
