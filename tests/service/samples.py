"""Request bodies that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinker import types

TOKENS = [72, 101, 108, 108, 111, 33]


def json_datum(tokens: list[int] = TOKENS, weight: float = 1.0) -> dict[str, Any]:
    """A cross-entropy datum as SDK 0.22 sends it."""
    n = len(tokens) - 1
    return {
        "model_input": {"chunks": [{"tokens": tokens[:-1], "type": "encoded_text"}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [n]},
            "weights": {"data": [weight] * n, "dtype": "float32", "shape": [n]},
        },
    }


def batch(*datums: dict[str, Any], loss_fn: str = "cross_entropy") -> dict[str, Any]:
    """The fields of a JSON ``forward_backward``."""
    return {"forward_backward_input": {"data": list(datums or [json_datum()]), "loss_fn": loss_fn}}


def forward(*datums: dict[str, Any]) -> dict[str, Any]:
    """The fields of a JSON ``forward``."""
    return {"forward_input": {"data": list(datums or [json_datum()]), "loss_fn": "cross_entropy"}}


def datum(seed: int = 0, length: int = 6) -> types.Datum:
    """A cross-entropy datum for the SDK."""
    tokens = np.random.default_rng(seed).integers(0, 250, length + 1).tolist()
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * length},
    )


def prompt(tokens: list[int] = TOKENS) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)
