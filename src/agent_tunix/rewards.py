"""The reward library under Agent Tunix's name: ``from agent_tunix.rewards import check_answer``.

Every name of :mod:`mint.rewards` is here. A reward function written into this file is found by its
name: ``training.reward_function=custom_reward_function``.
"""

import mint.rewards
from mint.rewards import __getattr__ as __getattr__

__all__ = mint.rewards.__all__


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
