"""Replace the reward of a task by the user's function."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError
from mint.jobs.task import importable
from mint.rewards import Failure, Reward, Sample, find_reward
from mint.rewards.code.reward import BrokenTest
from mint.rewards.registry import RewardNotFound
from mint.rewards.reward import run
from mint.rewards.shaping.composition import Scheduled
from mint.rewards.signature import SignatureError
from mint.rl.rollouts.scoring import as_sample, score_samples


def load_reward(name: str) -> Reward:
    """Return the reward with a name, or of ``file.py:function`` or ``package.module:function``."""
    place, separator, function = name.rpartition(":")
    in_file = place.endswith(".py")
    dotted = f"{place}.{function}" if separator and not in_file else name
    if name.endswith(".py") or not all([function] if in_file else dotted.split(".")):
        raise ConfigError(
            f"training.reward_function={name} is not a function. Write it as check_answer, "
            "my_rewards.py:my_reward or package.module:my_reward."
        )
    importable(Path.cwd())
    try:
        reward = find_reward(dotted)
    except (RewardNotFound, SignatureError, SyntaxError) as error:
        raise ConfigError(f"training.reward_function={name}: {error}") from None
    if isinstance(reward, Scheduled):
        raise ConfigError(
            f"training.reward_function={name}: the weights of a schedule() would never change "
            "here. Use weighted(), and set training.reward_weights and training.reward_weights_end."
        )
    return reward


def missing_from(reward: Reward, sample: Sample) -> str | None:
    """Return the name of the metadata that a reward needs and a sample lacks, or None.

    The name in an error counts only if the error changes when the metadata is there.

    >>> def exact(response, prompt, metadata):
    ...     return response == metadata["answer"]
    >>> from mint.rewards import as_reward
    >>> reward = as_reward(exact)
    >>> missing_from(reward, Sample("8", "What is 3 + 5?"))
    'answer'
    >>> missing_from(reward, Sample("8", "What is 3 + 5?", {"answer": "8"})) is None
    True
    """
    error = _find_error(reward, sample)
    if isinstance(error, BrokenTest):
        return None if "tests" in sample.metadata else "tests"
    named = re.search(r"'(\w+)'", str(error)) if isinstance(error, KeyError) else None
    if named is None or named[1] in sample.metadata:
        return None
    mended = replace(sample, metadata={**sample.metadata, named[1]: sample.response})
    return named[1] if str(_find_error(reward, mended)) != str(error) else None


def _find_error(reward: Reward, sample: Sample) -> Exception | None:
    (outcome,) = run(reward.outcomes([sample]))
    return outcome.error if isinstance(outcome, Failure) else None


def with_reward(task: type, reward: Reward) -> type:
    """Return a task's class with another reward in place of its own."""
    if hasattr(task, "rollout"):
        raise environment_refused(task.__name__)

    def compute_rewards(self: Any, responses: Sequence[str], sample: Any) -> Any:
        return score_samples(reward, [as_sample(sample, text) for text in responses])

    own = {"other_reward": reward, "compute_rewards": compute_rewards}
    return type(task.__name__, (task,), own)


def environment_refused(name: str) -> ConfigError:
    """Return why an agent's environment cannot have another reward."""
    return ConfigError(
        f"training.reward_function: {name} is an environment, which computes its own reward in "
        "rollout(); a reward function cannot replace it. Leave it out, or weight the "
        "environment's components: 'training.reward_weights={outcome: 1.0}'"
    )
