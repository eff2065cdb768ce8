"""A run: an adapter with its gradients and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .attention import TreeView
from .batch import Batch, check_request, loss_settings, make_batch
from .distill import reverse_kl
from .lora import EVERY_ROW, Adapter, Route, new_adapter
from .losses import Loss
from .messages import (
    AdamParams,
    DistillDatum,
    FloatArray,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    UserError,
)
from .model import BaseModel
from .peft_files import read_adapter, write_adapter
from .tree import PrefixTree, pack

_OPTIMIZER_FILE = "optimizer.safetensors"


class Run:
    """Trains one adapter: gradients add up over calls until ``optim_step`` uses them."""

    def __init__(self, model: BaseModel, spec: LoraSpec) -> None:
        self._model = model
        self.adapter = new_adapter(spec, model.sites, model.device)
        self._optimizer = _new_optimizer(self.adapter)
        self._budget = 1024 if model.device.type == "cpu" else 8192

    def forward_backward(self, operations: list[ForwardBackward]) -> list[ForwardBackwardResult]:
        """Run the operations; either all of their gradients are added or none is."""
        with self._all_or_nothing():
            return [self._run_part(n, operations) for n in range(len(operations))]

    def reverse_kl(
        self, reference: Adapter | None, data: list[DistillDatum], temperature: float
    ) -> list[float]:
        """The loss of each datum; gradients add up as those of ``forward_backward`` do."""
        with self._all_or_nothing():
            return reverse_kl(self._model, self.adapter, reference, data, temperature)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Keep the gradients that arise inside only if it ends well and they are finite."""
        parameters = self.adapter.parameters()
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
            self._require_finite()
        except BaseException:
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad
            raise
        for parameter, grad in zip(parameters, before, strict=True):
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)

    def _run_part(self, number: int, operations: list[ForwardBackward]) -> ForwardBackwardResult:
        """One operation; a mistake says which one it was in (datums count from 0 in each)."""
        try:
            return self._run(operations[number])
        except UserError as error:
            if len(operations) == 1:
                raise
            where = f"part {number + 1} of {len(operations)} of the batch"
            raise UserError(f"In {where}, {error}") from error

    def _run(self, request: ForwardBackward) -> ForwardBackwardResult:
        data, loss = check_request(request, self._model.info)
        settings = loss_settings(request.config, loss, request.loss_fn)
        logprobs: list[FloatArray] = [np.empty(0, np.float32)] * len(data)
        total = 0.0
        with torch.set_grad_enabled(not request.forward_only):
            for tree in pack([datum.tokens for datum in data], self._budget):
                batch = make_batch(tree, data, self._model.device)
                lp = self._logprobs(tree, batch)
                value = _loss_value(loss, lp, batch, settings)
                if not request.forward_only:
                    value.backward()  # type: ignore[no-untyped-call]
                total += value.item()
                pieces = np.split(lp.detach().cpu().numpy(), _cuts(batch))
                for member, piece, shape in zip(tree.members, pieces, batch.shapes, strict=True):
                    logprobs[member] = piece.reshape(shape)
        if not np.isfinite(total):
            raise UserError(
                f"The loss is {total}: the policy's and the sampler's logprobs are too far apart. "
                "Check that `logprobs` are the sampler's, and lower the learning rate."
            )
        return ForwardBackwardResult(logprobs, {"loss:sum": total})

    def _logprobs(self, tree: PrefixTree, batch: Batch) -> Tensor:
        view = TreeView(tree, self._model.device)
        routes = [Route(self.adapter, EVERY_ROW)]
        hidden = self._model.hidden(tree.tokens, tree.positions, view, routes)
        lp = self._model.head.target_logprobs(hidden, batch.nodes, batch.targets, self.adapter)
        return lp[batch.unsort]

    def _require_finite(self) -> None:
        grads = [p.grad for p in self.adapter.parameters() if p.grad is not None]
        if grads and not torch.isfinite(torch.stack([g.abs().max() for g in grads])).all():
            raise UserError(
                "The gradient is not finite, so it was dropped. Check advantages and logprobs for "
                "extreme values, and lower the learning rate."
            )

    def optim_step(self, params: AdamParams) -> dict[str, float]:
        """One AdamW step on the accumulated gradient, which is then cleared."""
        _check_adam(params)
        parameters = self.adapter.parameters()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = params.grad_clip_norm if params.grad_clip_norm > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        self._optimizer.param_groups[0].update(
            lr=params.learning_rate,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": float(norm), "learning_rate": params.learning_rate}

    def save(self, folder: Path) -> None:
        """Write adapter and optimizer state into an existing folder."""
        write_adapter(self.adapter, folder, self._model.name)
        tensors = {}
        for index, parameter in enumerate(self.adapter.parameters()):
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"{index}.{key}"] = value.detach().cpu().contiguous()
        save_file(tensors, folder / _OPTIMIZER_FILE)

    def load(self, folder: Path, optimizer: bool) -> None:
        """Take weights from a folder, and the optimizer's state too or a fresh one."""
        loaded = read_adapter(folder, self._model.sites)
        self._require_same_shape(loaded)
        state = load_file(folder / _OPTIMIZER_FILE) if optimizer else {}
        with torch.no_grad():
            for name, pair in self.adapter.pairs.items():
                for mine, saved in zip(pair, loaded.pairs[name], strict=True):
                    mine.copy_(saved)
                    mine.grad = None
        self._optimizer = _new_optimizer(self.adapter)
        parameters = self.adapter.parameters()
        for key, value in state.items():
            index, _, field = key.partition(".")
            parameter = parameters[int(index)]
            place = value if field == "step" else value.to(parameter.device)
            self._optimizer.state[parameter][field] = place

    def _require_same_shape(self, loaded: Adapter) -> None:
        mine, theirs = self.adapter.spec, loaded.spec
        if loaded.pairs.keys() != self.adapter.pairs.keys() or mine.rank != theirs.rank:
            flags = {k: v for k, v in asdict(theirs).items() if k != "seed"}
            wanted = ", ".join(f"{key}={value}" for key, value in flags.items())
            raise UserError(
                "The checkpoint's adapter has another shape than this run's. Create the run with "
                f"{wanted}."
            )


def _loss_value(loss: Loss, lp: Tensor, batch: Batch, settings: dict[str, float]) -> Tensor:
    config = {key: lp.new_tensor(value) for key, value in settings.items()}
    config |= {key: batch.inputs[key] for key in settings if key in batch.inputs}
    return loss.function(lp, batch.inputs, config, batch.datum)


def _cuts(batch: Batch) -> list[int]:
    sizes = [int(np.prod(shape)) for shape in batch.shapes]
    return [int(end) for end in np.cumsum(sizes)[:-1]]


def _new_optimizer(adapter: Adapter) -> torch.optim.AdamW:
    return torch.optim.AdamW(adapter.parameters(), foreach=True)


def _check_adam(params: AdamParams) -> None:
    for name, value in asdict(params).items():
        if not np.isfinite(value) or value < 0:
            raise UserError(f"{name} is {value}, but it must be a finite number, 0 or more.")
    for name in ("beta1", "beta2"):
        if getattr(params, name) >= 1:
            raise UserError(f"{name} is {getattr(params, name)}, but it must be below 1.")
