"""The unembedding: from hidden states to logits, and from the gradient of logits back."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mint.engine.model.context import Lora, TrainedLora
from mint.engine.model.linear import FrozenLinear, product_gradients
from mint.engine.model.precision import f32, mm, multiply_gradient
from mint.engine.native.training import LANES

_CHUNK_BYTES = 256 * 2**20  # of logits at a time
_GPU_CHUNK_BYTES = 2**30
_KERNEL_CHUNK_BYTES = 24 * 2**20  # stays in the cache, and in memory that is used again
_SPREAD = 4096.0  # times a probability: small ones are exact in float16 too


@dataclass(frozen=True)
class Head:
    """The unembedding, with the scale and soft cap that the architecture applies to logits."""

    linear: FrozenLinear
    softcap: float | None
    multiplier: float

    @property
    def name(self) -> str:
        return self.linear.sites[0].name

    @property
    def vocabulary(self) -> int:
        return int(self.linear.weight.shape[0])

    def logits(self, hidden: Tensor, lora: Lora) -> Tensor:
        """Return float32 logits [rows, vocabulary] of hidden states [rows, H]."""
        is_packed = self.linear.packed is not None
        if isinstance(lora, TrainedLora) and is_packed and not torch.is_grad_enabled():
            return self.raw_logits(hidden, lora, None)[0]
        return self._finish(self.linear.product(hidden, lora))

    def _finish(self, output: Tensor) -> Tensor:
        """Add what an architecture does to its logits: a bias, a factor, a soft cap."""
        if self.linear.bias is not None:
            output = output + self.linear.bias
        if self.multiplier != 1.0:
            output = output * self.multiplier
        if self.softcap is not None:
            output = self.softcap * torch.tanh(output / self.softcap)
        return output

    def logsumexp(self, logits: Tensor) -> Tensor:
        """Return the logsumexp of each row, in few passes over a large vocabulary."""
        return _fused(_logsumexp, logits)(logits)  # type: ignore[no-any-return]

    def entropy(self, logits: Tensor, sums: Tensor) -> Tensor:
        """Return the entropy of each row, given its logsumexp."""
        return _fused(_entropy, logits)(logits, sums)  # type: ignore[no-any-return]

    def raw_logits(
        self, hidden: Tensor, lora: Lora, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits, computed again unless known, and what B multiplies."""
        linear, precision = self.linear, self.linear.precision
        inner = None
        if isinstance(lora, TrainedLora) and linear.pairs:
            a = linear.pairs[0].to(precision.lora)
            inner = (mm(hidden.to(precision.lora), a.T) * lora.scale).to(precision.lora)
        if known is not None:
            return known, inner
        output = linear.frozen(hidden)
        if inner is not None:
            output += mm(inner, linear.pairs[1].to(precision.lora).T)
        return self._finish(output), inner

    def slope(
        self, logits: Tensor, sums: Tensor, total: Tensor, temperature: float,
        wanted: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Return the gradient of the logits without the one-hot term of the targets.

        ``logits`` are divided by the temperature already. ``total`` is the gradient of each row's
        logprobs, summed, and ``wanted`` that of its entropy, None for none. The result comes in the
        format of gradients: it is the largest tensor of a training pass.
        """
        settings = (self.multiplier, self._cap(temperature), self.linear.precision.lora_gradients)
        total = total / temperature
        if wanted is None:
            return _fused(_slope, logits)(logits, sums, total, *settings)  # type: ignore[no-any-return]
        entropy = (self.entropy(logits, sums), wanted / temperature)
        return _fused(_slope_with_entropy, logits)(logits, sums, total, *entropy, *settings)  # type: ignore[no-any-return]

    def add_to_slope(
        self, slope: Tensor, logits: Tensor, rows: Tensor, columns: Tensor, grad: Tensor,
        temperature: float,
    ) -> None:  # fmt: skip
        """Add the gradient of single logits to that of the product's output."""
        grad = grad * self.logit_slope(logits[rows, columns], temperature)
        slope.index_put_((rows, columns), grad.to(slope.dtype), accumulate=True)

    def logit_slope(self, logits: Tensor, temperature: float) -> Tensor:
        """Return how fast logits, divided by the temperature, grow with the product's output."""
        slope = torch.full_like(logits, self.multiplier / temperature)
        cap = self._cap(temperature)
        return slope if cap is None else slope * (1 - (logits / cap) ** 2)

    def pull(
        self, logits: Tensor, sums: Tensor, cells: tuple[Tensor, Tensor], weight: Tensor,
        temperature: float,
    ) -> Tensor:  # fmt: skip
        """Return d(logprob)/d(hidden) from all logits except ``cells``, rows and columns.

        ``weight`` is :meth:`pulling_weight`.
        """
        spread = torch.full_like(sums, _SPREAD)
        settings = (1.0, self._cap(temperature), weight.dtype)
        slope = _fused(_slope, logits)(logits, sums, spread, *settings)
        slope.index_put_(cells, slope.new_zeros(()))  # 0.0 would be copied, and waited for
        return mm(slope, weight) * (self.multiplier / temperature / _SPREAD)

    @property
    def has_kernels(self) -> bool:
        """Whether a CPU's kernels turn logits into probabilities and those into gradients."""
        is_plain = self.softcap is None and self.vocabulary % LANES == 0
        return is_plain and self.linear.precision.has_kernels

    def pull_back(self, probs: Tensor, cells: tuple[Tensor, Tensor], temperature: float) -> Tensor:
        """Return the same as :meth:`pull`, by kernels; the ``cells`` of ``probs`` become 0."""
        probs.index_put_(cells, probs.new_zeros(()))
        return self.linear.packed_back.multiply(probs).mul_(-self.multiplier / temperature)

    def pulling_weight(self) -> Tensor:
        """Return the frozen weight in a format of 16 bits, its own if that is one."""
        weight = self.linear.weight
        return weight.to(self.linear.precision.gradients) if weight.dtype == f32 else weight

    def _cap(self, temperature: float) -> float | None:
        """Return the soft cap of logits that are divided by the temperature."""
        return None if self.softcap is None else self.softcap / temperature

    def gradients(
        self, slope: Tensor, hidden: Tensor, inner: Tensor | None, lora: Lora, weight: Tensor
    ) -> list[Tensor]:
        """Return the gradients of hidden, A and B, given that of the product's output.

        ``weight`` is the frozen one in the format of gradients.
        """
        linear, precision = self.linear, self.linear.precision
        if inner is None or not isinstance(lora, TrainedLora):
            return [multiply_gradient(slope, weight, precision)]
        low = hidden.to(precision.lora)
        return product_gradients(
            precision, lora.scale, linear.sizes, slope, low, inner, weight, linear.pairs,
            joins=False,
        )  # fmt: skip

    def chunk_rows(self, by_kernels: bool = False) -> int:
        """Return how many rows of logits to hold at a time."""
        size = _GPU_CHUNK_BYTES if self.linear.weight.is_cuda else _CHUNK_BYTES
        if by_kernels:
            size = _KERNEL_CHUNK_BYTES
        return max(16, size // (4 * self.vocabulary))


def _logsumexp(logits: Tensor) -> Tensor:
    peak = logits.amax(-1, keepdim=True)
    # So shaped, both are one pass when compiled.
    total = (logits - peak).exp_().sum(-1, keepdim=True)
    return (total.log() + peak).squeeze(-1)


def _slope(
    logits: Tensor, sums: Tensor, total: Tensor, multiplier: float, softcap: float | None,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    slope = (logits - sums[:, None]).exp_().mul_((-multiplier * total)[:, None])
    if softcap is not None:
        slope = slope * (1 - (logits / softcap) ** 2)
    return slope.to(dtype)


def _entropy(logits: Tensor, sums: Tensor) -> Tensor:
    logprobs = logits - sums[:, None]
    return -(logprobs.exp() * logprobs).sum(-1)


def _slope_with_entropy(
    logits: Tensor, sums: Tensor, total: Tensor, entropy: Tensor, wanted: Tensor,
    multiplier: float, softcap: float | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """dH / dz_j = - p_j (log p_j + H)"""
    logprobs = logits - sums[:, None]
    slope = -multiplier * (total[:, None] + wanted[:, None] * (logprobs + entropy[:, None]))
    slope = slope * logprobs.exp()
    if softcap is not None:
        slope = slope * (1 - (logits / softcap) ** 2)
    return slope.to(dtype)


_compile = cache(torch.compile)


def _fused(function: Callable[..., Any], like: Tensor) -> Callable[..., Any]:
    """Return a function as one kernel where tensors are on a GPU.

    The number of rows becomes dynamic when it changes; that of columns stays known, so that loads
    can be wide.
    """
    return _compile(function) if like.is_cuda else function
