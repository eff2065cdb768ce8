"""Rewards by name, by dotted path, or by ``path/to/file.py:function``."""

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

Function = TypeVar("Function", bound=Callable[..., Any])

# Where a bare name is looked for. A function added to agent_tunix/rewards.py is found by its name.
_MODULES = ("mint.rewards", "agent_tunix.rewards")
_REGISTERED: dict[str, Callable[..., Any] | Reward] = {}
RANGES = {
    "binary_reward": "0 or 1",
    "check_answer": "0, 0.5 or 1",
    "check_case": "0 or 1",
    "check_instructions": "0 to 1",
    "check_json": "0, 0.5 or 1",
    "check_keywords": "0 to 1",
    "check_length": "0 or 1",
    "check_numbers": "0 to 1",
    "check_structure": "0 to 1",
    "check_tool_use": "0 or 1",
    "combined_reward": "0 to 1",
    "composite_reward": "0 to 1",
    "compute_reward_breakdown": "0 to 1",
    "continuous_reward": "0 to 1",
    "evaluate_clarity": "0 to 1",
    "evaluate_completeness": "0, 0.5 or 1",
    "evaluate_conciseness": "0 to 1",
    "evaluate_correctness": "0, 0.5 or 1",
    "evaluate_format": "0, 0.5 or 1",
    "evaluate_relevance": "0 to 1",
    "graduated_reward": "0, 0.5 or 1",
    "length_penalty": "-0.5 to 0",
    "match_format_approximately": "0 to 1",
    "match_format_exactly": "0, 0.5 or 1",
    "overlong_penalty": "-1 to 0",
    "repetition_penalty": "-0.5 to 0",
    "robust_reward": "0, 0.5 or 1",
    "shaped_reward": "-0.3 to 1.3",
    "stable_reward": "0.1 to 1",
    "step_count_penalty": "-0.5 to 0",
    "tool_cost_penalty": "-0.5 to 0",
    "tool_spam_penalty": "-0.5 to 0",
    "unsafe_penalty": "-1 to 0",
    "verbosity_penalty": "-0.5 to 0",
}


class RewardNotFound(LookupError):
    """No reward of this name; the text suggests similar ones."""


@dataclass(frozen=True)
class Listed:
    """A reward as ``mint rewards list`` shows it."""

    name: str
    range: str
    summary: str


def register(name: str | None = None) -> Callable[[Function], Function]:
    """Make a reward known under a name (its own, unless another is given).

    >>> @register("always_one")
    ... def one(response, **metadata):
    ...     return 1.0
    >>> find_reward("always_one")("anything").total
    1.0
    """

    def add(function: Function) -> Function:
        as_reward(function)
        _REGISTERED[name or function.__name__] = function
        return function

    return add


def find_reward(name: str) -> Reward:
    """The reward of this name, dotted path, or ``file.py:function``.

    >>> find_reward("check_answer")("4", metadata={"answer": "4"}).total
    1.0
    >>> find_reward("mint.rewards.answers.checks.check_answer").name
    'check_answer'
    """
    if name in _REGISTERED:
        return as_reward(_REGISTERED[name], name)
    path, separator, attribute = name.rpartition(":")
    if separator and path.endswith(".py"):
        return as_reward(_attribute(_module_from_file(Path(path)), attribute, name))
    if "." in name:
        module_name, _, attribute = name.rpartition(".")
        return as_reward(_attribute(_imported(module_name, name), attribute, name))
    for module_name in _MODULES:
        found = getattr(_imported(module_name, name), name, None)
        if callable(found):
            return as_reward(found)
    raise _not_found(name)


def list_rewards() -> list[Listed]:
    """Every built-in and registered reward function, by name.

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
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _imported(module_name: str, name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise _not_found(name) from None


def _module_from_file(path: Path) -> Any:
    if not path.is_file():
        raise RewardNotFound(
            f"There is no file {path}. Write the reward as path/to/file.py:function."
        )
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"mint_rewards_file_{digest}", path)
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
        raise RewardNotFound(f"{name}: there is no {attribute!r} in {module.__name__}.{hint}")
    return found


def _not_found(name: str) -> RewardNotFound:
    near = get_close_matches(name, [*RANGES, *_REGISTERED], n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return RewardNotFound(
        f"There is no built-in or registered reward {name!r}.{hint} `mint rewards list` shows "
        "all; a dotted path or path/to/file.py:function also works."
    )
