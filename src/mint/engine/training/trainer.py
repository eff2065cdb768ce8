"""Training one adapter: its gradients, its optimizer, its files."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate as running_sums
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mint.engine.adapters.lora import Adapter, new_adapter
from mint.engine.adapters.peft_files import read_adapter, write_adapter, write_tensors
from mint.engine.attention import tree_attention
from mint.engine.messages import (
    NOT_FINITE,
    AdamSettings,
    Datum,
    DistillDatum,
    FloatArray,
    ForwardBackward,
    ForwardBackwardResult,
    IntArray,
    LoraSpec,
    UserError,
)
from mint.engine.model.base_model import BaseModel
from mint.engine.model.precision import is_finite
from mint.engine.training.batch import check_request, make_batch
from mint.engine.training.distill import check_distillation, reverse_kl
from mint.engine.training.graphs import TrunkGraphs
from mint.engine.training.logprobs import Scoring, score_targets
from mint.engine.training.losses import Loss
from mint.engine.training.terms import Terms
from mint.engine.training.tree import PrefixTree, pack_evenly

_OPTIMIZER_FILE = "optimizer.safetensors"
_LARGEST = 1e15  # for Adam's settings: quotients and products of two still fit a float32

T = TypeVar("T")
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def accumulate(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """Add gradients to those that the parameters have, in few kernels."""
    both = [(p, grad) for p, grad in zip(parameters, grads, strict=True) if grad is not None]
    if sums := [(p.grad, grad) for p, grad in both if p.grad is not None]:
        torch._foreach_add_(*zip(*sums, strict=True))
    for parameter, grad in both:
        if parameter.grad is None:
            parameter.grad = grad


class _GradientSum:
    """The gradients of operations, added one by one to those that the parameters had.

    Each operation's gradient is computed apart from the others, so that the bits of the sum do not
    depend on which operations arrived together.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self.norms: list[float] = []
        """Of single passes; where none is known, the norm of the sum is computed."""
        self._parameters = parameters
        self._before = [parameter.grad for parameter in parameters]
        self._earlier: list[Tensor | None] = [None] * len(parameters)
        self.fold()

    def fold(self) -> None:
        """Add the gradient of one operation to the sum; that of the next begins at zero."""
        accumulate(self._parameters, self._earlier)
        self._earlier = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self) -> None:
        """Give the parameters the sum. Raises UserError when it is not finite."""
        accumulate(self._parameters, self._earlier)
        if not self.norms or any(grad is not None for grad in self._earlier):
            self.norms.append(_norm([p.grad for p in self._parameters]).item())
        if not np.isfinite(self.norms).all():
            raise UserError(
                "The gradient is not finite, so it was dropped. Check advantages and logprobs "
                f"for extreme values, and lower the learning rate. {NOT_FINITE}"
            )

    def undo(self) -> None:
        """Give the parameters the gradients that they had."""
        for parameter, grad in zip(self._parameters, self._before, strict=True):
            parameter.grad = grad


@dataclass(frozen=True)
class _Pass:
    """The result of one pass: its loss, sums over tokens, and arrays of one number per token."""

    sums: dict[str, Tensor]
    arrays: dict[str, Tensor]
    shapes: list[tuple[int, ...]]  # the shape of each datum's part of an array

    def read(self) -> tuple[dict[str, float], dict[str, list[FloatArray]]]:
        """Wait for the pass; return its sums, and its arrays datum by datum."""
        parts = [*(value.reshape(1) for value in self.sums.values()), *self.arrays.values()]
        flat = torch.cat([part.float() for part in parts]).cpu().numpy()
        numbers, rest = np.split(flat, [len(self.sums)])
        ends = list(running_sums(math.prod(shape) for shape in self.shapes))
        arrays = {}
        for name, array in zip(self.arrays, np.split(rest, len(self.arrays)), strict=True):
            pieces = zip(np.split(array, ends[:-1]), self.shapes, strict=True)
            arrays[name] = [piece.reshape(shape) for piece, shape in pieces]
        return dict(zip(self.sums, numbers.tolist(), strict=True)), arrays


class LoraTrainer:
    """Trains one adapter: gradients add up over calls until ``optim_step`` uses them."""

    def __init__(
        self, model: BaseModel, spec: LoraSpec, budget: int, graphs: TrunkGraphs | None = None
    ) -> None:
        self._model = model
        self._graphs = graphs or TrunkGraphs(model)
        self.adapter = new_adapter(spec, model.sites, model.device)
        self._optimizer = _new_optimizer(self.adapter)
        self.budget = budget  # tokens of one pass

    def forward_backward(self, operations: list[ForwardBackward]) -> list[ForwardBackwardResult]:
        """Run the operations; either all of their gradients are added or none is."""
        return finish(self.forward_backward_steps(operations))

    def forward_backward_steps(
        self, operations: list[ForwardBackward]
    ) -> Steps[list[ForwardBackwardResult]]:
        """Do the same in steps of one pass each, so that the caller can do other work between."""
        with self._all_or_nothing() as gradients:
            results = []
            for number, operation in enumerate(operations, start=1):
                if number > 1:
                    gradients.fold()
                try:
                    results.append((yield from self._run(operation, gradients.norms)))
                except UserError as error:
                    if len(operations) == 1:
                        raise
                    where = f"part {number} of {len(operations)} of the batch"
                    raise UserError(f"In {where}, {error}") from error  # datums count from 0 in it
            return results

    def reverse_kl(
        self, reference: Adapter | None, data: list[DistillDatum], temperature: float
    ) -> list[float]:
        """Return the loss of each datum; gradients add up as those of ``forward_backward`` do."""
        check_distillation(data, temperature, self._model.info)
        losses = np.zeros(len(data))

        def run(tree: PrefixTree) -> FloatArray:
            self._optimizer.zero_grad()  # what a pass left that ran out of memory
            settings = (tree, data, temperature, self.budget)
            return reverse_kl(self._model, self.adapter, reference, *settings)

        with self._all_or_nothing() as gradients:
            for tree, found in self._passes([datum.student for datum in data], run):
                losses[tree.members] = found
                gradients.fold()
        return losses.tolist()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[_GradientSum]:
        """Keep the gradients that arise inside only if it ends well and they are finite."""
        gradients = _GradientSum(self.adapter.parameters())
        try:
            yield gradients
            gradients.finish()
        except BaseException:
            gradients.undo()
            raise

    def _run(self, request: ForwardBackward, norms: list[float]) -> Steps[ForwardBackwardResult]:
        data, loss, settings, terms = check_request(request, self._model.info)
        arrays: dict[str, list[FloatArray]] = {}
        metrics: dict[str, float] = {}

        def run(tree: PrefixTree) -> _Pass:
            return self._run_tree(tree, data, loss, settings, terms, request.forward_only)

        for tree, done in self._passes([datum.tokens for datum in data], run):
            sums, parts = done.read()
            norms.append(sums.pop("gradient_norm", 0.0))
            for name, value in sums.items():
                metrics[f"{name}:sum"] = metrics.get(f"{name}:sum", 0.0) + value
            for name, pieces in parts.items():
                found = arrays.setdefault(name, [np.empty(0, np.float32)] * len(data))
                for member, piece in zip(tree.members, pieces, strict=True):
                    found[member] = piece
            yield
        if not np.isfinite(total := metrics["loss:sum"]):
            raise UserError(
                f"The loss is {total}: the policy's and the sampler's logprobs are too far apart. "
                "Check that `logprobs` are the sampler's, and lower the learning rate. "
                f"{NOT_FINITE}"
            )
        if terms.temperature != 1:
            metrics["temperature:mean"] = terms.temperature
        return ForwardBackwardResult(
            arrays["logprobs"], metrics, arrays["losses"], arrays.get("entropy", [])
        )

    def _passes(
        self, sequences: list[IntArray], run: Callable[[PrefixTree], T]
    ) -> Iterator[tuple[PrefixTree, T]]:
        """Run the passes that sequences take; one without memory is split and run again."""
        budget = self.budget
        trees = deque(_pack(sequences, range(len(sequences)), budget))
        while trees:
            tree = trees.popleft()
            try:
                done = run(tree)
            except torch.OutOfMemoryError as error:
                left = [member for each in (tree, *trees) for member in each.members]
                if not self._graphs.release():
                    budget = _smaller(budget, tree.members, len(tree.tokens), error)
                trees = deque(_pack(sequences, left, budget))
            else:
                yield tree, done

    def _run_tree(
        self,
        tree: PrefixTree,
        data: list[Datum],
        loss: Loss,
        settings: dict[str, float],
        terms: Terms,
        forward_only: bool,
    ) -> _Pass:
        """Launch one pass and add its gradient, or nothing when that fails."""
        model, sums = self._model, dict[str, Tensor]()
        parameters = self.adapter.parameters()
        with torch.set_grad_enabled(not forward_only):
            recompute = not forward_only and len(tree.tokens) > self.budget
            replay = None if recompute else self._graphs.replay(tree, self.adapter)
            lora = self.adapter.train_on(model.products)
            if replay is None:
                view = tree_attention(tree, model.device, model.precision)
                hidden = model.hidden(tree.tokens, tree.positions, view, lora, recompute)
            else:
                hidden = replay.hidden
            batch = make_batch(tree, data, loss, model.device)  # while the device works
            scoring = Scoring(terms.temperature, terms.needs_entropy, bool(terms.entropy_coef))
            lp, entropy = score_targets(model.head, hidden, batch.targets, lora, scoring)
            lp, entropy = lp[batch.unsort], None if entropy is None else entropy[batch.unsort]
            config = {key: lp.new_full((), value) for key, value in settings.items()}
            config |= {key: batch.inputs[key] for key in settings if key in batch.inputs}
            each = loss.function(lp, batch.inputs, config, batch.datum)
            if terms.has_kl:
                kl = terms.kl(lp, batch.inputs)
                each, sums["kl_loss"] = each + kl, kl.sum()
            if terms.entropy_coef and entropy is not None:
                bonus = terms.entropy_loss(entropy, batch.inputs)
                each, sums["entropy_loss"] = each + bonus, bonus.sum()
            sums["loss"] = each.sum()
        grads: list[Tensor | None] = [None] * len(parameters)
        if not forward_only:
            if replay is not None:
                grads = replay.gradients(sums["loss"], parameters)
            else:
                grads = [*torch.autograd.grad(sums["loss"], parameters, allow_unused=True)]
            sums["gradient_norm"] = _norm(grads)
        arrays = {"logprobs": lp, "losses": each}
        if terms.entropy and entropy is not None:
            arrays["entropy"] = entropy
        if batch.targets.kept is not None:
            sums["kept_tokens"] = (batch.targets.kept >= 0).any(-1).sum()
        sums, arrays = ({k: v.detach() for k, v in d.items()} for d in (sums, arrays))
        result = _Pass(sums, arrays, batch.shapes)
        accumulate(parameters, grads)  # last: what fails before is run again
        return result

    def optim_step(self, params: AdamSettings) -> dict[str, float]:
        """Run one AdamW step on the accumulated gradient, which is then cleared.

        When it fails, or would make a number NaN or infinite, weights, optimizer and gradient stay
        as they were.
        """
        _check_adam(params)
        parameters = self.adapter.parameters()
        weights = [parameter.detach().clone() for parameter in parameters]
        gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
        state = {
            parameter: {key: value.clone() for key, value in known.items()}
            for parameter, known in self._optimizer.state.items()
        }
        try:
            norm = self._step(params)
        except BaseException:
            for parameter, weight, gradient in zip(parameters, weights, gradients, strict=True):
                parameter.data.copy_(weight)
                parameter.grad = gradient
            self._optimizer = _new_optimizer(self.adapter)
            self._optimizer.state.update(state)
            raise
        self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm, "learning_rate": params.learning_rate}

    def _step(self, params: AdamSettings) -> float:
        """Clip, step, and check what came out; return the gradient's norm before clipping."""
        parameters = self.adapter.parameters()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = params.grad_clip_norm if params.grad_clip_norm > 0 else float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        self._optimizer.param_groups[0].update(
            lr=params.learning_rate,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        self._optimizer.step()
        states = self._optimizer.state.values()
        moments = [value for state in states for key, value in state.items() if key != "step"]
        if not np.isfinite(norm) or not is_finite([*parameters, *moments]):
            raise UserError(
                "This optim_step would have made weights or optimizer state NaN or infinite, so "
                "it was rejected: weights, optimizer and gradient are unchanged. The gradient's "
                f"norm is {norm:.3g}, the learning rate {params.learning_rate:g}. Step again with "
                f"a lower learning rate or with grad_clip_norm. {NOT_FINITE}"
            )
        return norm

    def save(self, folder: Path) -> None:
        """Write adapter and optimizer state into an existing folder."""
        write_adapter(self.adapter, folder, self._model.name)
        tensors = {}
        for index, parameter in enumerate(self.adapter.parameters()):
            for key, value in self._optimizer.state[parameter].items():
                tensors[f"{index}.{key}"] = value.detach().cpu().contiguous()
        write_tensors(folder / _OPTIMIZER_FILE, tensors)

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
            # The step too: a GPU's optimizer, one kernel for all tensors, reads it there.
            self._optimizer.state[parameter][field] = value.to(parameter.device)

    def _require_same_shape(self, loaded: Adapter) -> None:
        mine, theirs = self.adapter.spec, loaded.spec
        if loaded.pairs.keys() != self.adapter.pairs.keys() or mine.rank != theirs.rank:
            flags = {k: v for k, v in asdict(theirs).items() if k != "seed"}
            wanted = ", ".join(f"{key}={value}" for key, value in flags.items())
            raise UserError(
                "The checkpoint's adapter has another shape than this run's. Create the run with "
                f"{wanted}."
            )


def _pack(sequences: list[IntArray], members: Sequence[int], budget: int) -> list[PrefixTree]:
    """Pack some of the sequences into the trees of as many passes."""
    trees = pack_evenly([sequences[i] for i in members], budget)
    return [replace(tree, members=[members[m] for m in tree.members]) for tree in trees]


def _smaller(budget: int, members: list[int], tokens: int, error: Exception) -> int:
    """Return the budget to try again with after a pass of so many tokens ran out of memory."""
    torch.cuda.empty_cache()
    if len(members) == 1:
        raise UserError(
            f"The device ran out of memory on a sequence of {tokens} tokens, alone in its batch. "
            "Shorten it, or give the engine more memory."
        ) from error
    return min(budget, tokens) // 2


def _norm(gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the norm of all gradients together."""
    return torch.nn.utils.get_total_norm([grad for grad in gradients if grad is not None])


def _new_optimizer(adapter: Adapter) -> torch.optim.AdamW:
    parameters = adapter.parameters()
    return torch.optim.AdamW(parameters, fused=parameters[0].is_cuda, foreach=None)


def _check_adam(params: AdamSettings) -> None:
    for name, value in asdict(params).items():
        if not np.isfinite(value) or value < 0:
            raise UserError(f"{name} is {value}, but it must be a finite number, 0 or more.")
        if value > _LARGEST and name != "grad_clip_norm":
            raise UserError(f"{name} is {value:g}, but it must be at most {_LARGEST:g}.")
        if value >= 1 and name in ("beta1", "beta2"):
            raise UserError(f"{name} is {value}, but it must be below 1.")
