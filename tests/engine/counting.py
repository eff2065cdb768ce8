"""Counts the tokens that a base model runs, where a time would depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mint.engine.model.base_model import BaseModel


@contextmanager
def tokens_run(model: BaseModel) -> Iterator[list[int]]:
    """How many tokens each pass of the base model sees."""
    seen: list[int] = []
    hook = model.trunk.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()
