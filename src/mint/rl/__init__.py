"""RL on a service: from a reward function to a better model. Client side, no torch.

>>> from mint.rl import RLConfig
>>> RLConfig().group_size
4
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mint.config_error import ConfigError as ConfigError

if TYPE_CHECKING:
    from mint.rl.agents.chat import Chat as Chat
    from mint.rl.agents.chat import ContextFull as ContextFull
    from mint.rl.agents.chat import Reply as Reply
    from mint.rl.agents.chat import TurnLimit as TurnLimit
    from mint.rl.agents.environment import Environment as Environment
    from mint.rl.agents.episodes import GymnasiumEnvironment as GymnasiumEnvironment
    from mint.rl.agents.episodes import OpenEnvEnvironment as OpenEnvEnvironment
    from mint.rl.agents.openenv import OpenEnvHttp as OpenEnvHttp
    from mint.rl.agents.openenv import OpenEnvSocket as OpenEnvSocket
    from mint.rl.agents.rehearsal import rehearse as rehearse
    from mint.rl.agents.tools import Tool as Tool
    from mint.rl.agents.tools import ToolError as ToolError
    from mint.rl.agents.tools import calculator as calculator
    from mint.rl.agents.tools import python_tool as python_tool
    from mint.rl.agents.tools import run_tools as run_tools
    from mint.rl.agents.tools import search_tool as search_tool
    from mint.rl.agents.tools import tool as tool
    from mint.rl.algorithms.advantage import advantages as advantages
    from mint.rl.data.curriculum import Curriculum as Curriculum
    from mint.rl.data.dataset import DatasetTask as DatasetTask
    from mint.rl.data.rows import DataError as DataError
    from mint.rl.data.split import Split as Split
    from mint.rl.datums.datum import build_datums as build_datums
    from mint.rl.evaluation.comparison import Comparison as Comparison
    from mint.rl.evaluation.comparison import compare as compare
    from mint.rl.evaluation.evaluator import Evaluator as Evaluator
    from mint.rl.evaluation.examiner import Examiner as Examiner
    from mint.rl.evaluation.results import SetResult as SetResult
    from mint.rl.evaluation.scores import Evaluation as Evaluation
    from mint.rl.evaluation.scores import evaluate as evaluate
    from mint.rl.guards import Guards as Guards
    from mint.rl.loop.grpo import run_grpo as run_grpo
    from mint.rl.loop.run import Run as Run
    from mint.rl.messages.tool_calls import parse_tool_calls as parse_tool_calls
    from mint.rl.rollouts.credit import TurnScore as TurnScore
    from mint.rl.rollouts.credit import assign_advantages as assign_advantages
    from mint.rl.rollouts.credit import per_turn as per_turn
    from mint.rl.rollouts.rollout import Group as Group
    from mint.rl.rollouts.rollout import MissingLogprobs as MissingLogprobs
    from mint.rl.rollouts.rollout import Rollout as Rollout
    from mint.rl.rollouts.rollout import Segment as Segment
    from mint.rl.runtime.endings import CheckpointGone as CheckpointGone
    from mint.rl.runtime.endings import Interrupted as Interrupted
    from mint.rl.runtime.endings import RewardsFailed as RewardsFailed
    from mint.rl.runtime.endings import RunStopped as RunStopped
    from mint.rl.runtime.endings import ServiceLost as ServiceLost
    from mint.rl.settings.config import RLConfig as RLConfig
    from mint.rl.task import RLAdapter as RLAdapter

_NAMES = {
    "task": ["RLAdapter"],
    "algorithms.advantage": ["advantages"],
    "agents.chat": ["Chat", "ContextFull", "Reply", "TurnLimit"],
    "evaluation.comparison": ["Comparison", "compare"],
    "settings.config": ["RLConfig"],
    "rollouts.credit": ["TurnScore", "assign_advantages", "per_turn"],
    "data.curriculum": ["Curriculum"],
    "data.dataset": ["DatasetTask"],
    "datums.datum": ["build_datums"],
    "runtime.endings": [
        "CheckpointGone",
        "Interrupted",
        "RewardsFailed",
        "RunStopped",
        "ServiceLost",
    ],
    "agents.environment": ["Environment"],
    "agents.episodes": ["GymnasiumEnvironment", "OpenEnvEnvironment"],
    "agents.openenv": ["OpenEnvHttp", "OpenEnvSocket"],
    "evaluation.scores": ["Evaluation", "evaluate"],
    "evaluation.evaluator": ["Evaluator"],
    "evaluation.examiner": ["Examiner"],
    "loop.grpo": ["run_grpo"],
    "guards": ["Guards"],
    "agents.rehearsal": ["rehearse"],
    "evaluation.results": ["SetResult"],
    "rollouts.rollout": ["Group", "MissingLogprobs", "Rollout", "Segment"],
    "data.rows": ["DataError"],
    "loop.run": ["Run"],
    "data.split": ["Split"],
    "messages.tool_calls": ["parse_tool_calls"],
    "agents.tools": [
        "Tool",
        "ToolError",
        "calculator",
        "python_tool",
        "run_tools",
        "search_tool",
        "tool",
    ],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_MODULE_OF, "ConfigError"])


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
