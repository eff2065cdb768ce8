"""Reverse KL between a run's policy and a frozen reference, over the whole vocabulary.

For each target position, sum over tokens v of p(v) (log p(v) - log r(v)), where p is the student's
distribution and r the reference's, both at the given temperature; times the position's weight.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .attention import TreeView
from .head import Head
from .lora import EVERY_ROW, Adapter, Route
from .messages import DistillDatum, IntArray, UserError
from .model import BaseModel
from .tree import pack


def reverse_kl(
    model: BaseModel,
    student: Adapter,
    reference: Adapter | None,
    data: list[DistillDatum],
    temperature: float,
) -> list[float]:
    """Add the gradient of the summed loss to the student's; returns the loss of each datum."""
    _check(data, temperature, model.info.vocab_size, model.info.context_length)
    losses = []
    for datum in data:
        count = len(datum.targets)
        mine = _hidden(model, datum.student, student)[-count:]
        with torch.no_grad():
            theirs = _hidden(model, datum.reference, reference)[-count:]
        leaf = mine.detach().requires_grad_()
        weights = model.tensor(datum.weights)
        losses.append(_backward(model.head, leaf, theirs, weights, student, reference, temperature))
        if leaf.grad is not None:
            mine.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return losses


def _backward(
    head: Head,
    mine: Tensor,
    theirs: Tensor,
    weights: Tensor,
    student: Adapter,
    reference: Adapter | None,
    temperature: float,
) -> float:
    """Chunk by chunk, so that a bounded number of rows of logits exist at a time."""
    total = 0.0
    for start in range(0, len(mine), head.chunk_rows()):
        part = slice(start, start + head.chunk_rows())
        with torch.no_grad():
            log_r = torch.log_softmax(head.logits(theirs[part], reference) / temperature, -1)
        log_p = torch.log_softmax(head.logits(mine[part], student) / temperature, -1)
        loss = (weights[part] * (log_p.exp() * (log_p - log_r)).sum(-1)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def _hidden(model: BaseModel, tokens: IntArray, adapter: Adapter | None) -> Tensor:
    [tree] = pack([tokens], budget=len(tokens))
    routes = [Route(adapter, EVERY_ROW)] if adapter is not None else []
    return model.hidden(tree.tokens, tree.positions, TreeView(tree, model.device), routes)


def _check(data: list[DistillDatum], temperature: float, vocabulary: int, context: int) -> None:
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
