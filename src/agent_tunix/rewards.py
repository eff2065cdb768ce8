"""The reward library under Agent Tunix's name: ``from agent_tunix.rewards import check_answer``.

Every name of :mod:`mint.rewards` is here. A reward function written into this file is found by its
name: ``training.reward_function=custom_reward_function``.
"""

from typing import Any

import mint.rewards

__all__ = mint.rewards.__all__


def __getattr__(name: str) -> Any:
    if name not in mint.rewards.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(mint.rewards, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
