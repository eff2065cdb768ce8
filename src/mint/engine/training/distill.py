"""Reverse KL between a run's policy and a frozen reference, over the whole vocabulary.

For each target position, sum over tokens v of p(v) (log p(v) - log r(v)), where p is the student's
distribution and r the reference's, both at the given temperature; times the position's weight.
"""

import math

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters.lora import Adapter
from mint.engine.attention import tree_attention
from mint.engine.messages import DistillDatum, FloatArray, IntArray, ModelInfo, UserError
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import Lora, NoLora
from mint.engine.model.pauses import pause
from mint.engine.training.tree import PrefixTree, pack


def reverse_kl(
    model: BaseModel,
    student: Adapter,
    reference: Adapter | None,
    tree: PrefixTree,
    data: list[DistillDatum],
    temperature: float,
    budget: int,
) -> FloatArray:
    """Run the pass of a tree; return the loss of each member. The student gets its gradient."""
    members = [data[member] for member in tree.members]
    weights = model.tensor(np.concatenate([datum.weights for datum in members]))
    with torch.no_grad():
        theirs = _reference_hidden(model, reference, members, budget)
    mine = _hidden(model, student, tree, members, recompute=len(tree.tokens) > budget)
    leaf = mine.detach().requires_grad_()
    values = []  # chunk by chunk: a bounded number of rows of logits exist at a time
    for start in range(0, len(leaf), model.head.chunk_rows()):
        pause()
        part = slice(start, start + model.head.chunk_rows())
        with torch.no_grad():
            log_r = _logprobs(model, reference, theirs[part], temperature)
        log_p = _logprobs(model, student, leaf[part], temperature)
        loss = weights[part] * (log_p.exp() * (log_p - log_r)).sum(-1)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        values.append(loss.detach().cpu().numpy())
    if mine.requires_grad:  # not where the output layer alone is trained
        mine.backward(leaf.grad)  # type: ignore[no-untyped-call]
    starts = np.cumsum([0, *(len(datum.targets) for datum in members[:-1])])
    return np.add.reduceat(np.concatenate(values, dtype=np.float64), starts)


def _activate(model: BaseModel, adapter: Adapter | None) -> Lora:
    return NoLora() if adapter is None else adapter.train_on(model.products)


def _logprobs(
    model: BaseModel, adapter: Adapter | None, hidden: Tensor, temperature: float
) -> Tensor:
    """Return the logprobs of the whole vocabulary [rows, V]."""
    logits = model.head.logits(hidden, _activate(model, adapter))
    return torch.log_softmax(logits / temperature, -1)


def _reference_hidden(
    model: BaseModel, reference: Adapter | None, data: list[DistillDatum], budget: int
) -> Tensor:
    """Return the reference's hidden states before the targets of these datums, in their order."""
    parts: list[Tensor] = [torch.empty(0)] * len(data)
    for tree in pack([datum.reference for datum in data], budget):
        members = [data[member] for member in tree.members]
        hidden = _hidden(model, reference, tree, members)
        pieces = torch.split(hidden, [len(datum.targets) for datum in members])
        for member, piece in zip(tree.members, pieces, strict=True):
            parts[member] = piece
    return torch.cat(parts)


def _hidden(
    model: BaseModel,
    adapter: Adapter | None,
    tree: PrefixTree,
    data: list[DistillDatum],
    recompute: bool = False,
) -> Tensor:
    """Return the hidden states that predict the targets of a tree's members, member by member."""
    lora = _activate(model, adapter)
    view = tree_attention(tree, model.device, model.precision)
    hidden = model.hidden(tree.tokens, tree.positions, view, lora, recompute)
    rows = [path[-len(d.targets) :] for path, d in zip(tree.paths, data, strict=True)]
    return hidden[model.tensor(np.concatenate(rows))]


def check_distillation(data: list[DistillDatum], temperature: float, info: ModelInfo) -> None:
    """Raise UserError for what the loss cannot be computed of."""
    vocabulary, context = info.vocab_size, info.context_length
    if not data:
        raise UserError("The batch is empty: data has no datum. Pass at least one datum.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise UserError(f"temperature is {temperature}, but it must be a positive number.")
    for index, datum in enumerate(data):
        count = len(datum.targets)
        for name in ("student", "reference"):
            tokens: IntArray = getattr(datum, name)
            if not max(count, 1) <= len(tokens) <= context:
                raise UserError(
                    f"datum {index}: {name}_input has {len(tokens)} tokens, but it must have at "
                    f"least one for each of the {count} target_tokens, and at most {context}."
                )
            if tokens.min() < 0 or tokens.max() >= vocabulary:
                raise UserError(
                    f"datum {index}: {name}_input has a token id outside 0..{vocabulary - 1}."
                )
        if count == 0 or datum.weights.shape != (count,) or not np.isfinite(datum.weights).all():
            raise UserError(
                f"datum {index}: weights must be a finite number for each of the target_tokens, "
                "of which there must be at least one."
            )
