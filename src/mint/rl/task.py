"""The base class of tasks, as in MinT: a dataset, a prompt, a reward."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mint import types


class RLAdapter(ABC):
    """The base class of tasks. Three methods are required; the others have defaults.

    A reward may be a number, a :class:`mint.rewards.Score` with components, None for "does not
    apply", or an awaitable of one of them. If it raises, the answer is left out of training.
    """

    @abstractmethod
    def build_dataset(self) -> list[Any]:
        """Return the samples to draw from, at every step: the same ones, which steps go through in
        epochs, or new ones, of which a step uses the first ``batch``."""

    @abstractmethod
    def make_prompt(self, sample: Any, tokenizer: Any) -> list[int]:
        """Return the tokens that the model continues."""

    @abstractmethod
    def compute_reward(self, response: str, sample: Any) -> Any:
        """Return the reward of a response."""

    def compute_rewards(self, responses: Sequence[str], sample: Any) -> Any:
        """Return the rewards of one group's responses; override it to compare them."""
        raise NotImplementedError

    def holdout_reward(self, response: str, sample: Any) -> Any:
        """Return how good a response really is, for evaluation; training never sees this.

        Override it when the training reward is only a stand-in, such as partial credit or a judge:
        ``reward_hacking`` is reported when the two diverge.
        """
        raise NotImplementedError

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:  # noqa: B027
        """Print or record something of your own after the line of each step."""

    def build_holdout(self) -> list[Any]:
        """Samples for evaluation only. Without them, a share of the dataset is split off."""
        return []

    def identity(self, sample: Any) -> str | None:
        """Return what makes two samples the same problem, such as "3 + 5" and "5 + 3", so that one
        is not trained on while the other is held out. None: the prompt's tokens."""
        return None

    def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
        """Change the datums of a step before they are trained on."""
        return datums


def overrides(adapter: Any, name: str) -> bool:
    """Return whether a task has its own version of an optional method."""
    method = getattr(type(adapter), name, None)
    return method is not None and method is not getattr(RLAdapter, name)


def identify(adapter: Any, sample: Any, prompt: Sequence[int] | None) -> str:
    """Return the name of a sample in the curriculum and in the split: the same in every process."""
    own = adapter.identity(sample) if hasattr(adapter, "identity") else None
    if own is None:
        own = json.dumps(prompt) if prompt is not None else _as_text(sample)
    return hashlib.sha256(own.encode()).hexdigest()[:16]


def _as_text(task: Any) -> str:
    try:
        return json.dumps(task, sort_keys=True, default=_plain, ensure_ascii=False)
    except TypeError as error:
        raise TypeError(
            f"A {type(task).__name__} has no text that is the same in every process, so it cannot "
            f"be distinguished from other tasks: {error}. Make it a dataclass or a dict, or "
            "give the environment identity(task) -> str."
        ) from None


def _plain(value: Any) -> Any:
    """Convert what JSON cannot express, without an order or an address that may change."""
    if isinstance(value, set | frozenset):
        return sorted(_as_text(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        if not all(isinstance(part, str | int | float | None) for part in parts.values()):
            return parts  # the order of a set's repr may change; that of simple parts does not
    text = repr(value)
    if " at 0x" in text:
        raise TypeError(f"{text} is named by where it is in memory")
    return text
