"""The linear layers of a base model, with the adapters that are active.

A layer computes ``W x + (alpha / rank) B A x``. Layers that read the same input (query, key and
value; gate and up) are one product: the first computes all, the others return their part of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mint.engine import native
from mint.engine.model.context import BankedLora, Lora, TrainedLora, active, by_slot
from mint.engine.model.precision import (
    FrozenProduct,
    Precision,
    bf16,
    fill_up,
    mm,
    multiply,
    multiply_frozen,
    multiply_gradient,
    multiply_reordered,
    reorder,
)
from mint.engine.native.training import LANES
from mint.engine.native.training import LoraProduct as KernelLoraProduct

Pairs = Mapping[str, tuple[Tensor, Tensor]]  # A and B by the name of their site
Copies = list[tuple[Tensor, Tensor]]  # each a target and its source

_SIBLINGS: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True)
class Site:
    """A layer that an adapter can train: where it is and its size."""

    name: str
    kind: str  # "attn", "mlp" or "unembed"
    inputs: int
    outputs: int
    experts: int = 0  # with a weight of this size each; 0 for a linear layer

    def height(self, rank: int) -> int:
        """Return how many rows an adapter's A has here: the rank, for each expert."""
        return rank * max(self.experts, 1)


class FrozenLinear(nn.Module):
    """One or several frozen linear layers of the same input, as one product."""

    def __init__(self, sites: list[Site], layers: list[nn.Module], precision: Precision) -> None:
        super().__init__()
        self.sites = sites
        self.sizes = [site.outputs for site in sites]
        self.precision = precision
        weights = [_weight(layer).to(precision.weights) for layer in layers]
        self.weight = torch.cat(weights) if len(weights) > 1 else weights[0].contiguous()
        self.bias = _joint_bias(layers, self.sizes)
        self.packed: native.Packed | None = None  # the layout of the C kernels
        if self.weight.device.type == "cpu" and precision.has_kernels:
            self.packed = native.Packed(self.weight.to(bf16), self.sizes)
        # For sampling on a CPU without C kernels.
        self._reordered = reorder(self.weight) if self.packed is None else None
        # A plain bool: compiled layers cannot follow how it is found.
        widths = (*self.sizes, self.weight.shape[1])
        self._has_training_kernels = self.packed is not None and not any(
            width % LANES for width in widths
        )
        self.pairs: tuple[Tensor, ...] = ()  # the adapter in training: A, B of each site
        self.bank: tuple[Tensor, Tensor] | None = None  # the adapters in sampling, on a GPU
        self.slots: list[tuple[Tensor, Tensor] | None] = []  # the same on a CPU: A, B of each slot
        self.extended = self.weight  # on a GPU, the weight with the bank's A below it
        self.parts: tuple[Tensor, ...] = ()  # outputs for the other layers of the product

    def forward(self, x: Tensor) -> Tensor:
        y = self.joint(x)
        y = y.view(*x.shape[:-1], y.shape[-1])
        if len(self.sizes) == 1:
            return y
        first, *others = torch.split(y, self.sizes, -1)
        self.parts = tuple(others)
        return first

    def joint(self, x: Tensor) -> Tensor:
        """Return the outputs of all layers of the product for x, row by row."""
        rows, lora = x.reshape(-1, x.shape[-1]), active().lora
        if self._has_training_kernels and isinstance(lora, TrainedLora) and self.pairs:
            y: Tensor = KernelLoraProduct.apply(  # type: ignore[no-untyped-call]
                self.packed, lambda: self.packed_back, float(lora.scale), rows, *self.pairs
            )
        else:
            y = self.product(rows, lora)
        return y if self.bias is None else y + self.bias

    @cached_property
    def packed_back(self) -> native.Packed:
        """The weight, packed for the gradient by the input when training begins."""
        return native.Packed(self.weight.to(bf16).T)

    def product(self, x: Tensor, lora: Lora) -> Tensor:
        """Multiply float32 rows [N, in] by the weight and the adapters, without a bias."""
        if isinstance(lora, TrainedLora) and self.pairs:
            settings = (self.precision, lora.scale)
            if not torch.is_grad_enabled():
                return lora_product(*settings, x, self.weight, self.packed, self.pairs)[0]
            return LoraProduct.apply(  # type: ignore[no-any-return, no-untyped-call]
                *settings, self.sizes, x, self.weight, self.packed, *self.pairs
            )
        if torch.is_grad_enabled():
            return FrozenProduct.apply(x, self.weight, self.precision, self.packed)  # type: ignore[no-any-return, no-untyped-call]
        if not x.is_cuda:
            return self._sampled(x, lora)
        if not isinstance(lora, BankedLora) or self.bank is None:
            return multiply(x, self.weight, self.precision)
        if self.joins_bank:
            return self._joint(x, self.bank[1], lora)
        y = multiply(x, self.weight, self.precision)
        return _add_banked(y, x, self.bank, lora, self.precision)

    def frozen(self, x: Tensor) -> Tensor:
        """Multiply float32 rows by the weight alone."""
        return multiply_frozen(x, self.weight, self.precision, self.packed)

    @property
    def joins_bank(self) -> bool:
        """Whether the bank's A is multiplied together with the weight."""
        return self.weight.is_cuda and self.precision.lora == self.precision.weights

    @torch.inference_mode(False)
    @torch.no_grad()
    def new_bank(self, slots: int, rank: int) -> None:
        """Allocate the bank of adapters; its previous contents are discarded."""
        if not self.weight.is_cuda:
            self.slots = [None] * slots
            if self.packed is not None:
                self.packed.clear_adapters()
            return
        height, (outputs, inputs) = len(self.sites) * rank, self.weight.shape
        dtype = self.precision.lora
        b = self.weight.new_zeros(slots, height, outputs, dtype=dtype)
        if not self.joins_bank:
            self.bank = (self.weight.new_zeros(slots, height, inputs, dtype=dtype), b)
            return
        rows = self.weight.new_zeros(outputs + slots * height, inputs)
        rows[:outputs] = self.weight
        self.extended, self.weight = rows, rows[:outputs]
        self.bank = (rows[outputs:].view(slots, height, inputs), b)

    def write_slot(self, slot: int, pairs: Pairs) -> Copies:
        """Put the A and scaled B of these sites into a slot; return the copies left to do."""
        (outputs, inputs), sites = self.weight.shape, len(self.sites)
        ranks = [len(pairs[site.name][0]) if site.name in pairs else 0 for site in self.sites]
        if self.weight.is_cuda:
            assert self.bank is not None
            a, b = (tensor[slot] for tensor in self.bank)
            if min(ranks) * sites < len(a):  # else the copies fill what another adapter filled
                a.zero_(), b.zero_()
            return self._slot_copies(a, b, pairs)
        rank = max(ranks)
        a = torch.zeros(sites * rank, inputs)
        b = torch.zeros(sites * rank if self.packed is None else rank, outputs)
        for target, source in self._slot_copies(a, b, pairs):
            target.copy_(source)
        if self.packed is None:
            self.slots[slot] = (a, b) if rank else None
        else:
            self.packed.set_adapter(slot, a, b)
        return []

    def _slot_copies(self, a: Tensor, b: Tensor, pairs: Pairs) -> Copies:
        """Return the copies that write all A one below the other, and all B side by side.

        A ``b`` of the same height as ``a`` has the rows of its sites one below the other too.
        """
        height, column, copies = len(a) // len(self.sites), 0, []
        for index, site in enumerate(self.sites):
            if pair := pairs.get(site.name):
                rank, first = len(pair[0]), index * height
                copies.append((a[first : first + rank], pair[0]))
                first = first if len(b) == len(a) else 0
                target = b[first : first + rank, column : column + site.outputs]
                copies.append((target, pair[1].T))
            column += site.outputs
        return copies

    def _joint(self, x: Tensor, b: Tensor, lora: BankedLora) -> Tensor:
        """Multiply by the weight and every slot's A at once, then add B times the latter.

        A decode step on a GPU is bound by the number of its kernels: this takes two.
        """
        outputs = self.weight.shape[0]
        rows = outputs + lora.slots * b.shape[1]
        y = mm(x.to(self.weight.dtype), self.extended[:rows].T)
        if lora.mask is not None:
            from mint.engine.adapters.kernels import lora_expand

            lora_expand(y, b[: lora.slots], lora.mask.expand(len(y), -1))
            return y[:, :outputs]
        inner = y[:, outputs:].to(b.dtype)
        return y[:, :outputs] + mm(inner, b[: lora.slots].flatten(0, 1))

    def _sampled(self, x: Tensor, lora: Lora) -> Tensor:
        """Multiply on a CPU so that the bits of a row do not depend on the other rows."""
        if self.packed is not None:
            return self.packed.multiply(x, by_slot(lora))
        rows = fill_up(x)
        if self._reordered is not None:
            y = multiply_reordered(rows, self._reordered)
        else:
            y = multiply(rows, self.weight, self.precision)
        in_use = lora.members if isinstance(lora, BankedLora) and self.slots else []
        for slot, members in in_use:
            if (pair := self.slots[slot]) is None:
                continue
            own, part = rows, y
            if members is not None:
                own, part = fill_up(x[members]), fill_up(y[members])
            part.addmm_(mm(own.to(self.precision.lora), pair[0].T), pair[1])
            if members is not None:
                y[members] = part[: len(members)]
        return y[: len(x)]


class LinearPart(nn.Module):
    """A layer whose output the first layer of its product has computed already."""

    def __init__(self, first: FrozenLinear, index: int) -> None:
        super().__init__()
        self._first = [first]  # in a list, so that torch does not register it as a child
        self._index = index
        self._is_last = index == len(first.sizes) - 1

    def forward(self, x: Tensor) -> Tensor:
        first = self._first[0]
        part = first.parts[self._index - 1]
        if self._is_last:
            first.parts = ()
        return part


def lora_product(
    precision: Precision, scale: Tensor, x: Tensor, weight: Tensor, packed: native.Packed | None,
    pairs: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Multiply by a frozen weight and one adapter; return also what the backward pass needs.

    That is x in the adapter's format, and the scaled product of x and A.
    """
    low = x.to(precision.lora)
    a, b = _joint_pairs(pairs, precision.lora)
    inner = (mm(low, a.T) * scale).to(precision.lora)  # [N, sites * rank]
    if not _is_joinable(precision.lora, weight.dtype, inner):
        return multiply_frozen(x, weight, precision, packed) + mm(inner, b), low, inner
    both = torch.cat([low, inner], 1)
    y = mm(both, torch.cat([weight, b.T], 1).T)
    return y, both[:, : low.shape[1]], both[:, low.shape[1] :]


def _is_joinable(lora: torch.dtype, weight: torch.dtype, inner: Tensor) -> bool:
    """Return whether ``W x + B z`` is computed as one product, of ``[W B]`` and x above z.

    On a GPU it saves a float32 result of full size, which is written and read again. Compiled
    layers write x and z side by side, so that only W and B are copied.
    """
    return inner.is_cuda and lora == weight and inner.shape[1] % 8 == 0  # aligned rows


class LoraProduct(torch.autograd.Function):
    """The same product, differentiable in x, A and B.

    It is used with gradients only: without them, torch.compile leaves out ``ctx`` when the number
    of arguments happens to equal that of ``forward``'s parameters (torch 2.11).
    """

    @staticmethod
    def forward(
        ctx: Any, precision: Precision, scale: Tensor, sizes: list[int], x: Tensor, weight: Tensor,
        packed: native.Packed | None, *pairs: Tensor,
    ) -> Tensor:  # fmt: skip
        y, low, inner = lora_product(precision, scale, x, weight, packed, pairs)
        ctx.precision, ctx.sizes = precision, sizes
        ctx.save_for_backward(scale, low, inner, weight, *pairs)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale, low, inner, weight, *pairs = ctx.saved_tensors
        results = product_gradients(
            ctx.precision, scale, ctx.sizes, grads[0], low, inner, weight, pairs
        )
        return None, None, None, results[0], None, None, *results[1:]


def product_gradients(
    precision: Precision, scale: Tensor, sizes: list[int], grad: Tensor, low: Tensor, inner: Tensor,
    weight: Tensor, pairs: Sequence[Tensor], joins: bool = True,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of x and of every A and B, given that of the product's output.

    Without ``joins``, ``grad`` is not copied: that of logits is too large.
    """
    dtype, rank = precision.lora_gradients, pairs[0].shape[0]
    a, b = _joint_pairs(pairs, dtype)
    rounded = grad.to(dtype)
    full_grad = mm(rounded, b.T) * scale  # of x A, in float32
    inner_grad = full_grad.to(dtype)
    if joins and _is_joinable(dtype, precision.gradients, inner):
        operands = torch.cat([rounded, inner_grad], 1), torch.cat([weight.to(dtype), a])
        # A wide input is that of an activation or of attention, where its gradient is rounded.
        is_wide = weight.shape[1] > weight.shape[0]
        x_grad = torch.mm(*operands).float() if is_wide else mm(*operands)
    else:
        x_grad = multiply_gradient(grad, weight, precision) + mm(inner_grad, a)
    if low.dtype == dtype:
        a_grad = mm(inner_grad.T, low)
    else:  # float16: the narrow operand is scaled into its range, which the wide one has already
        peaks = full_grad.abs().amax(0).clamp(min=1e-30)
        a_grad = mm((full_grad / peaks).to(low.dtype).T, low) * peaks[:, None]
    a_grads = torch.split(a_grad, rank)
    whole = mm(rounded.T, inner.to(dtype))  # [outputs, sites * rank]: the blocks count
    b_grads, at = [], 0
    for index, size in enumerate(sizes):
        b_grads.append(whole[at : at + size, index * rank : (index + 1) * rank].contiguous())
        at += size
    return [x_grad, *(g for pair in zip(a_grads, b_grads, strict=True) for g in pair)]


def _joint_pairs(pairs: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return all A as one matrix [sites * rank, in], all B as one [sites * rank, out]."""
    if len(pairs) == 2:
        return pairs[0].to(dtype), pairs[1].to(dtype).T
    b = torch.block_diag(*(pair.to(dtype).T for pair in pairs[1::2]))  # type: ignore[no-untyped-call]
    return torch.cat([pair.to(dtype) for pair in pairs[::2]]), b


def _add_banked(
    y: Tensor, x: Tensor, bank: tuple[Tensor, Tensor], lora: BankedLora, precision: Precision
) -> Tensor:
    """Add the products of the adapters in a bank's first slots, each to its own rows."""
    a, b = (tensor[: lora.slots].flatten(0, 1) for tensor in bank)
    inner = mm(x.to(precision.lora), a.T)  # [rows, slots * sites * rank]
    if lora.mask is not None:
        is_own = lora.mask[:, :, None] != 0  # not a product: 0 * inf would reach the other rows
        inner = torch.where(is_own, inner.view(len(x), lora.slots, -1), 0.0).view(len(x), -1)
    return y.addmm_(inner.to(precision.lora), b)


def _find_groups(sites: list[Site]) -> list[list[Site]]:
    """Group the sites that read the same input, in the order of the model."""
    families: dict[tuple[str, tuple[str, ...]], list[Site]] = {}
    for site in sites:
        parent, _, child = site.name.rpartition(".")
        family = next((names for names in _SIBLINGS if child in names), (child,))
        families.setdefault((parent, family), []).append(site)
    groups = []
    for (_, family), members in families.items():
        is_whole = [site.name.rpartition(".")[2] for site in members] == [*family]
        groups += [members] if is_whole else [[site] for site in members]
    return groups


def replace_layers(
    model: nn.Module, sites: list[Site], precision: Precision
) -> dict[str, FrozenLinear]:
    """Replace the model's linear layers by ours; return each product by its first site's name."""
    products = {}
    # Clipping works in place, which parts of a joint product do not allow.
    clips = getattr(model.config, "clip_qkv", None) is not None
    for group in [[site] for site in sites] if clips else _find_groups(sites):
        layers = [model.get_submodule(site.name) for site in group]
        product = FrozenLinear(group, layers, precision)
        products[group[0].name] = product
        model.set_submodule(group[0].name, product)
        for index, site in enumerate(group[1:], start=1):
            model.set_submodule(site.name, LinearPart(product, index))
    return products


def _weight(layer: nn.Module) -> Tensor:
    """Return the weight of a linear layer as [out, in]."""
    weight: Tensor = layer.weight.detach()  # type: ignore[operator]
    return weight.T if isinstance(layer, Conv1D) else weight


def _joint_bias(layers: list[nn.Module], sizes: list[int]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    biases = [
        _weight(layer).new_zeros(size) if layer.bias is None else layer.bias.detach()  # type: ignore[operator]
        for layer, size in zip(layers, sizes, strict=True)
    ]
    return torch.cat(biases).float()
