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


class RewardNotFound(LookupError):
    """No reward of this name; the text says where it was looked for and what is near."""


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
    from mint.rewards.catalog import RANGES

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
    module_name = f"mint_rewards_file_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
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
    from mint.rewards.catalog import RANGES

    near = get_close_matches(name, [*RANGES, *_REGISTERED], n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return RewardNotFound(
        f"There is no built-in or registered reward {name!r}.{hint} `mint rewards list` shows "
        "all; a dotted path or path/to/file.py:function also works."
    )
