"""Detect the signature of a reward function.

``(response, prompt, metadata)``, ``(response, **metadata)`` with any names taken from the
metadata, or batched: ``(prompts, completions, **columns) -> list``. Each may be async.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mint.rewards.score import Sample

Kind = Literal["positional", "keywords", "batched"]

_ALIASES = {
    "ground_truth": "answer",
    "answer": "ground_truth",
    "expected_format": "format",
    "format": "expected_format",
    "correct_answer": "answer",
}
_KNOWN = """
  def reward(response, prompt, metadata)
  def reward(response, **metadata)
  def reward(response, ground_truth)   # any names that the metadata has
  def reward(prompts, completions, **columns)   # returns a list"""


class SignatureError(TypeError):
    """A function that cannot be a reward; the message shows the accepted signatures."""


@dataclass(frozen=True)
class Signature:
    """How to call a reward function."""

    kind: Kind
    is_async: bool
    names: tuple[str, ...]
    required: frozenset[str]
    takes_any: bool

    def arguments(self, sample: Sample) -> dict[str, Any]:
        """Return the keyword arguments for one sample."""
        given = dict(sample.metadata)
        available = {"prompt": sample.prompt, "metadata": dict(given), **given}
        return self._choose({**available, self.names[0]: sample.response}, given)

    def columns(self, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        """Return the keyword arguments for a batch: one list per column."""
        names = {name for sample in samples for name in sample.metadata}
        columns = {name: [sample.metadata.get(name) for sample in samples] for name in names}
        columns |= {
            "prompts": [sample.prompt for sample in samples],
            "completions": [sample.response for sample in samples],
        }
        return self._choose(columns, columns)

    def _choose(self, available: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for each parameter, and all that is given if the function takes any."""
        chosen = dict(given) if self.takes_any else {}
        for name in self.names:
            source = name if name in available else _ALIASES.get(name, name)
            if source in available:
                chosen[name] = available[source]
            elif name in self.required:
                raise KeyError(
                    f"The reward has the parameter {name!r}, but the sample's metadata has only "
                    f"{sorted(given) or 'nothing'}. Add {name!r} to the sample."
                )
        return chosen


def read_signature(function: Callable[..., Any]) -> Signature:
    """Return the signature of a reward function.

    >>> read_signature(lambda response, prompt, metadata: 1.0).kind
    'positional'
    >>> read_signature(lambda prompts, completions, **columns: []).kind
    'batched'
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise _refused(function, "its signature cannot be read") from None
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters):
        raise _refused(function, "it has positional-only parameters or *args")
    batched = "completions" in names
    is_positional = names[1:] == ["prompt", "metadata"]
    if not batched and (not names or names[0] in ("prompt", "prompts", "metadata")):
        raise _refused(function, "its first parameter is not the response")
    return Signature(
        kind="batched" if batched else "positional" if is_positional else "keywords",
        is_async=inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None)),  # noqa: B004
        names=tuple(names),
        required=frozenset(p.name for p in parameters if p.default is p.empty),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def _refused(function: Callable[..., Any], reason: str) -> SignatureError:
    name = getattr(function, "__name__", type(function).__name__)
    return SignatureError(f"{name} cannot be a reward: {reason}. Write it as one of{_KNOWN}")
