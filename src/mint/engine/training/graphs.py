"""Training passes on a GPU as CUDA graphs.

A pass through the decoder layers launches thousands of kernels, and on a small model the host
takes longer to launch them than the device to run them. So the forward and the backward pass of the
layers are recorded, for each number of tokens (rounded up) and each shape of adapter, and replayed.
The output layer and the loss run between the two, without a graph: they depend on the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mint.engine.adapters.lora import Adapter
from mint.engine.cuda_graph import Recordings, capture, warm_up
from mint.engine.messages import LoraSpec
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import Lora
from mint.engine.model.precision import to_device
from mint.engine.training.tree import PrefixTree

_STEP = 512  # a pass is filled up to a multiple of this many tokens
_MOST = 64  # recorded passes; each takes some memory of its own
_Key = tuple[LoraSpec, int]


class TrunkGraphs(Recordings[_Key, "_RecordedPass"]):
    """The recorded passes of one model, by the shape of the adapter and the number of tokens."""

    def __init__(self, model: BaseModel) -> None:
        super().__init__(model.bank, "Training runs", _MOST)
        self.is_possible = model.device.type == "cuda" and not model.has_experts
        self._model = model

    def replay(self, tree: PrefixTree, adapter: Adapter) -> Replay | None:
        """Run the forward pass of a tree, or return None: run it without a graph."""
        if not torch.is_grad_enabled():
            return None
        key = (replace(adapter.spec, seed=None), -(-len(tree.tokens) // _STEP) * _STEP)
        try:
            recorded = self.find(key, lambda memory: self._record(key, adapter, memory))
        except torch.OutOfMemoryError:  # it is tried again when the size was seen twice more
            self.release()
            return None
        if recorded is None:
            return None
        recorded.load(tree, adapter)
        recorded.forward.replay()
        return Replay(recorded, recorded.hidden.detach().requires_grad_())

    def _record(
        self, key: _Key, adapter: Adapter, memory: Any
    ) -> tuple[_RecordedPass, torch.cuda.CUDAGraph]:
        spec, size = key
        twin = next((p.adapter for (other, _), p in self._known.items() if other == spec), None)
        own = twin or adapter.trainable_copy(self._model.device)
        recorded = _RecordedPass.record(self._model, size, own, memory)
        return recorded, recorded.forward


@dataclass(frozen=True)
class _RecordedPass:
    """The graphs of one size, and the tensors that they read and write."""

    adapter: Adapter  # a copy of the one in training, at addresses that stay
    lora: Lora
    inputs: Tensor  # [7, size] of 32 bits: tokens and positions (64 bits), then the layout
    hidden: Tensor
    hidden_grad: Tensor
    grads: list[Tensor | None]  # gradients of the adapter's tensors
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph

    @classmethod
    def record(cls, model: BaseModel, size: int, adapter: Adapter, memory: Any) -> _RecordedPass:
        from mint.engine.attention.gpu import KernelTree

        inputs = to_device(_pack_inputs(None, size), model.device)
        tokens, layout = inputs[:4].view(torch.int64).view(2, size), inputs[4:]
        view = KernelTree(layout[0], layout[1], layout[2], model.precision.keys)
        lora = adapter.train_on(model.products)
        parameters = adapter.parameters()

        def run_forward() -> Tensor:
            return model.hidden(tokens[0], tokens[1], view, lora)

        def run_backward(hidden: Tensor, grad: Tensor) -> list[Tensor | None]:
            return list(torch.autograd.grad(hidden, parameters, grad, allow_unused=True))

        def run_both() -> None:
            hidden = run_forward()
            run_backward(hidden, torch.zeros_like(hidden))

        warm_up(run_both)
        forward, hidden = capture(run_forward, memory)
        hidden_grad = torch.zeros_like(hidden)
        backward, grads = capture(lambda: run_backward(hidden, hidden_grad), forward.pool())
        return cls(adapter, lora, inputs, hidden.detach(), hidden_grad, grads, forward, backward)

    @torch.no_grad()
    def load(self, tree: PrefixTree, adapter: Adapter) -> None:
        """Copy what a pass reads, the tree and the adapter, in two transfers: the device waits."""
        packed = _pack_inputs(tree, self.inputs.shape[1])
        self.inputs.copy_(to_device(packed, self.inputs.device))
        assert self.adapter.storage is not None
        assert adapter.storage is not None
        self.adapter.storage.copy_(adapter.storage)


@dataclass(frozen=True)
class Replay:
    """A forward pass that was replayed, and whose backward pass was not yet."""

    _recorded: _RecordedPass
    hidden: Tensor  # the last hidden states [>= N, H], which take a gradient

    def gradients(self, loss: Tensor, parameters: list[Tensor]) -> list[Tensor | None]:
        """Return the gradients of the adapter's tensors, those of the output layer too."""
        recorded, grads = self._recorded, self._recorded.grads
        outside = [p for p, grad in zip(parameters, grads, strict=True) if grad is None]
        hidden_grad, *others = torch.autograd.grad(loss, [self.hidden, *outside], allow_unused=True)
        recorded.hidden_grad.copy_(hidden_grad)
        recorded.backward.replay()
        present = [grad for grad in grads if grad is not None]
        copies = iter(torch._foreach_mul(present, 1.0))  # the next replay overwrites them
        rest = iter(others)
        return [next(rest) if grad is None else next(copies) for grad in grads]


def _pack_inputs(tree: PrefixTree | None, size: int) -> NDArray[np.int32]:
    """Return the inputs of a pass over a tree, filled up with single tokens."""
    packed = np.zeros((7, size), np.int32)
    tokens, layout = packed[:4].view(np.int64).reshape(2, size), packed[4:]
    layout[0], layout[1] = np.arange(1, size + 1), np.arange(size)
    if tree is not None:
        count = len(tree.tokens)
        tokens[:, :count] = tree.tokens, tree.positions
        layout[:, :count] = tree.ends, tree.roots, tree.positions
    return packed
