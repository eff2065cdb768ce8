"""The settings of a job by config group: those of the loop, and what the command adds."""

from typing import Any

from pydantic import BaseModel

from mint.rl.settings import fields
from mint.rl.settings.config import RLConfig
from mint.settings import setting


class TaskSettings(fields.StrictSettings):
    """The class of a task and its arguments."""

    adapter: str | None = setting(None, "the task's class: file.py:Class or package.module:Class")
    arguments: dict[str, Any] | None = setting(
        {}, "the arguments of the class, as in task.arguments.task=gym:chain_sum"
    )


class JobTraining(fields.TrainingSettings):
    """The settings of training, and a reward function that replaces the task's own."""

    reward_function: str | None = setting(
        None,
        "replaces the task's own reward: a name from `mint rewards list`, a function in "
        "src/agent_tunix/rewards.py, file.py:function or package.module:function",
    )


class JobLogging(fields.LoggingSettings):
    """The settings of logging, and what is printed during a run."""

    samples: int = setting(0, "number of answers to print per step, with prompt and reward", ge=0)


CONFIG_GROUPS: dict[str, type[BaseModel]] = {
    "model": fields.ModelSettings,
    "algorithm": fields.AlgorithmSettings,
    "task": TaskSettings,
    "sampling": fields.SamplingSettings,
    "training": JobTraining,
    "evaluation": fields.EvaluationSettings,
    "logging": JobLogging,
}


def defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of all settings, or what the environment sets, as by MINT_RL_STEPS."""
    loop = RLConfig.from_env().as_dict()
    return {
        group: {name: loop.get(name, each.get_default()) for name, each in own.model_fields.items()}
        for group, own in CONFIG_GROUPS.items()
    }
