"""Find rewards by name, by dotted path, or by ``path/to/file.py:function``."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from mint.rewards.reward import Reward, as_reward

Function = TypeVar("Function", bound=Callable[..., Any] | Reward)

_REGISTERED: dict[str, Callable[..., Any] | Reward] = {}
_NAMES_BY_RANGE = {
    "0 or 1": "binary_reward check_case check_length check_tool_use",
    "0, 0.5 or 1": (
        "check_answer check_json evaluate_completeness evaluate_correctness evaluate_format "
        "graduated_reward match_format_exactly robust_reward"
    ),
    "0 to 1": (
        "check_instructions check_keywords check_numbers check_structure combined_reward "
        "composite_reward compute_reward_breakdown continuous_reward evaluate_clarity "
        "evaluate_conciseness evaluate_relevance match_format_approximately"
    ),
    "-0.5 to 0": (
        "length_penalty repetition_penalty step_count_penalty tool_cost_penalty "
        "tool_spam_penalty verbosity_penalty"
    ),
    "-1 to 0": "overlong_penalty unsafe_penalty",
    "-0.3 to 1.3": "shaped_reward",
    "0.1 to 1": "stable_reward",
}
RANGES = {name: span for span, names in _NAMES_BY_RANGE.items() for name in names.split()}
"""The range of every built-in reward function."""


class RewardNotFound(LookupError):
    """There is no reward of this name; the message suggests similar ones."""


@dataclass(frozen=True)
class Listed:
    """A reward as ``mint rewards list`` shows it."""

    name: str
    range: str
    summary: str


def register(name: str | None = None) -> Callable[[Function], Function]:
    """Register a reward under a name (by default its own).

    >>> @register("always_one")
    ... def one(response, **metadata):
    ...     return 1.0
    >>> find_reward("always_one")("anything").total
    1.0
    """

    def add(function: Function) -> Function:
        reward = as_reward(function)
        _REGISTERED[name or reward.name] = function
        return function

    return add


def find_reward(name: str) -> Reward:
    """Return the reward of this name, dotted path, or ``file.py:function``.

    >>> find_reward("check_answer")("4", metadata={"answer": "4"}).total
    1.0
    >>> find_reward("mint.rewards.answers.checks.check_answer").name
    'check_answer'
    """
    if name in _REGISTERED:
        return as_reward(_REGISTERED[name], name)
    path, separator, attribute = name.rpartition(":")
    if separator and path.endswith(".py"):
        return as_reward(_attribute(load_file(Path(path)), attribute, name))
    module_name, _, attribute = name.rpartition(".")
    if module_name.strip("."):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and not module_name.startswith(error.name):
                raise
            raise _not_found(name) from None
        return as_reward(_attribute(module, attribute, name))
    # It has every name of mint.rewards, and the functions that a user adds to its file.
    found = getattr(importlib.import_module("agent_tunix.rewards"), name, None)
    if not callable(found):
        raise _not_found(name)
    return as_reward(found)


def list_rewards() -> list[Listed]:
    """List all built-in and registered reward functions by name.

    >>> "check_answer" in [listed.name for listed in list_rewards()]
    True
    """
    rewards = importlib.import_module("mint.rewards")
    listed = [Listed(name, RANGES[name], _summary(getattr(rewards, name))) for name in RANGES]
    listed += [
        Listed(name, "as registered", _summary(function)) for name, function in _REGISTERED.items()
    ]
    return sorted(listed, key=lambda one: one.name)


def _summary(function: Any) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0].replace("``", "`")


def load_file(path: Path) -> Any:
    """Run a Python file and return its module."""
    if not path.is_file():
        raise RewardNotFound(
            f"There is no file {path}. Write the reward as path/to/file.py:function."
        )
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"mint_file_{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attribute(module: Any, attribute: str, name: str) -> Any:
    found = getattr(module, attribute, None)
    if found is None:
        near = get_close_matches(attribute, dir(module), n=3)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        place = name[: -len(attribute) - 1]
        raise RewardNotFound(f"There is no {attribute!r} in {place}.{hint}")
    return found


def _not_found(name: str) -> RewardNotFound:
    near = get_close_matches(name, [*RANGES, *_REGISTERED], n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return RewardNotFound(
        f"There is no built-in or registered reward {name!r}.{hint} `mint rewards list` shows "
        "all; a dotted path or path/to/file.py:function also works."
    )
