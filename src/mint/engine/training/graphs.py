"""Training passes on a GPU as CUDA graphs.

A pass through the decoder layers launches thousands of kernels, and on a small model the host
takes longer to launch them than the device to run them. So the forward and the backward pass of the
layers are recorded, for each number of tokens (rounded up) and each shape of adapter, and replayed.
The output layer and the loss run between the two, without a graph: they depend on the data.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters.lora import Adapter
from mint.engine.messages import LoraSpec
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import Lora
from mint.engine.model.precision import to_device
from mint.engine.training.tree import PrefixTree

log = logging.getLogger(__name__)
_STEP = 512  # a pass is filled up to a multiple of this many tokens
_MOST = 64  # recorded passes; each takes some memory of its own
_Key = tuple[LoraSpec, int]


class TrunkGraphs:
    """The recorded passes of one model.

    They share their memory, because a pass ends before the next one begins. A size is recorded when
    it comes for the second time: recording takes about as long as three passes.
    """

    def __init__(self, model: BaseModel) -> None:
        self._is_possible = model.device.type == "cuda" and not model.has_experts
        self._model = model
        self._recorded: dict[_Key, _RecordedPass] = {}
        self._seen: set[_Key] = set()
        self._memory: Any = None
        self._generation = model.bank.generation
        self.replays = 0

    def replay(self, tree: PrefixTree, adapter: Adapter) -> Replay | None:
        """Run the forward pass of a tree, or return None: run it without a graph."""
        if not self._is_possible or not torch.is_grad_enabled():
            return None
        if self._generation != self._model.bank.generation:  # the weights have moved
            self.release()
            self._generation = self._model.bank.generation
        key = (replace(adapter.spec, seed=None), -(-len(tree.tokens) // _STEP) * _STEP)
        if key not in self._seen:
            self._seen.add(key)
            return None
        if key not in self._recorded and not self._record(key, adapter):
            return None
        self.replays += 1
        recorded = self._recorded[key]
        recorded.load(tree, adapter.parameters())
        recorded.forward.replay()
        return Replay(recorded, recorded.hidden.detach().requires_grad_())

    def release(self) -> bool:
        """Free the memory of all recorded passes; return whether there was any."""
        had_any = bool(self._recorded)
        if had_any:
            torch.cuda.synchronize()
            self._recorded.clear()
            self._memory = None  # the allocator forgets a pool with its last graph
            torch.cuda.empty_cache()
        self._seen.clear()
        return had_any

    def _record(self, key: _Key, adapter: Adapter) -> bool:
        """Record a pass; return whether it was possible."""
        if len(self._recorded) >= _MOST:
            self.release()
        _, size = key
        twin = next((p.adapter for (spec, _), p in self._recorded.items() if spec == key[0]), None)
        try:
            recorded = _RecordedPass.record(
                self._model, size, twin or _copy_for_training(adapter), self._memory
            )
        except RuntimeError as error:
            log.warning("Training runs without CUDA graphs, more slowly: %s", error)
            self._is_possible = False
            self.release()
            return False
        self._recorded[key] = recorded
        self._memory = recorded.forward.pool()
        return True


@dataclass(frozen=True)
class _RecordedPass:
    """The graphs of one size, and the tensors that they read and write."""

    adapter: Adapter  # a copy of the one in training, at addresses that stay
    lora: Lora
    tokens: Tensor  # [2, size]: tokens and positions
    layout: Tensor  # [3, size]: ends, roots and positions of the nodes
    hidden: Tensor
    hidden_grad: Tensor
    grads: list[Tensor | None]  # of the adapter's tensors
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph

    @classmethod
    def record(cls, model: BaseModel, size: int, adapter: Adapter, memory: Any) -> _RecordedPass:
        from mint.engine.attention.gpu import KernelTree

        tokens = torch.zeros(2, size, dtype=torch.int64, device=model.device)
        nodes = torch.arange(size, dtype=torch.int32, device=model.device)
        layout = torch.stack([nodes + 1, nodes, torch.zeros_like(nodes)])  # single tokens
        view = KernelTree(layout[0], layout[1], layout[2], model.precision.keys)
        lora = adapter.train_on(model.products)
        parameters = adapter.parameters()

        def run_forward() -> Tensor:
            return model.hidden(tokens[0], tokens[1], view, lora)

        def run_backward(hidden: Tensor, grad: Tensor) -> list[Tensor | None]:
            return list(torch.autograd.grad(hidden, parameters, grad, allow_unused=True))

        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # whatever has to be compiled is compiled here
            warm = run_forward()
            hidden_grad = torch.zeros_like(warm)
            run_backward(warm, hidden_grad)
            del warm
        torch.cuda.current_stream().wait_stream(stream)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=memory):
            hidden = run_forward()
        with torch.cuda.graph(backward, pool=forward.pool()):
            grads = run_backward(hidden, hidden_grad)
        return cls(
            adapter, lora, tokens, layout, hidden.detach(), hidden_grad, grads, forward, backward
        )

    @torch.no_grad()
    def load(self, tree: PrefixTree, parameters: list[Tensor]) -> None:
        """Copy what a pass reads: the tree, filled up with single tokens, and the adapter."""
        count, size = len(tree.tokens), self.tokens.shape[1]
        tokens = np.zeros((2, size), np.int64)
        tokens[:, :count] = tree.tokens, tree.positions
        layout = np.zeros((3, size), np.int32)
        layout[0], layout[1] = np.arange(1, size + 1), np.arange(size)
        layout[:, :count] = tree.ends, tree.roots, tree.positions
        self.tokens.copy_(to_device(tokens, self.tokens.device))
        self.layout.copy_(to_device(layout, self.tokens.device))
        torch._foreach_copy_(self.adapter.parameters(), parameters)


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


def _copy_for_training(adapter: Adapter) -> Adapter:
    """Copy an adapter into tensors of its own that take gradients."""
    pairs = {
        name: (a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_())
        for name, (a, b) in adapter.pairs.items()
    }
    return Adapter(adapter.spec, pairs)
