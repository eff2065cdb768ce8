"""RL on a service: from a reward function to a better model. Client side, no torch.

>>> from mint.rl import RLConfig
>>> RLConfig().group_size
4
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mint.rl.adapter import RLAdapter as RLAdapter
    from mint.rl.advantage import advantages as advantages
    from mint.rl.chat import Chat as Chat
    from mint.rl.chat import ContextFull as ContextFull
    from mint.rl.chat import Reply as Reply
    from mint.rl.chat import TurnLimit as TurnLimit
    from mint.rl.comparison import Comparison as Comparison
    from mint.rl.comparison import compare as compare
    from mint.rl.config import RLConfig as RLConfig
    from mint.rl.credit import TurnScore as TurnScore
    from mint.rl.credit import assign_advantages as assign_advantages
    from mint.rl.credit import per_turn as per_turn
    from mint.rl.curriculum import Curriculum as Curriculum
    from mint.rl.dataset import DatasetTask as DatasetTask
    from mint.rl.datums import build_datums as build_datums
    from mint.rl.endings import CheckpointGone as CheckpointGone
    from mint.rl.endings import Interrupted as Interrupted
    from mint.rl.endings import RewardsFailed as RewardsFailed
    from mint.rl.endings import RunStopped as RunStopped
    from mint.rl.endings import ServiceLost as ServiceLost
    from mint.rl.environment import Environment as Environment
    from mint.rl.evaluation import Evaluation as Evaluation
    from mint.rl.evaluation import evaluate as evaluate
    from mint.rl.evaluator import Evaluator as Evaluator
    from mint.rl.examination import Examiner as Examiner
    from mint.rl.grpo import run_grpo as run_grpo
    from mint.rl.guards import Guards as Guards
    from mint.rl.options import ConfigError as ConfigError
    from mint.rl.rehearsal import rehearse as rehearse
    from mint.rl.results import SetResult as SetResult
    from mint.rl.rollout import Group as Group
    from mint.rl.rollout import MissingLogprobs as MissingLogprobs
    from mint.rl.rollout import Rollout as Rollout
    from mint.rl.rollout import Segment as Segment
    from mint.rl.rows import DataError as DataError
    from mint.rl.run import Run as Run
    from mint.rl.split import Split as Split
    from mint.rl.tool_calls import parse_tool_calls as parse_tool_calls
    from mint.rl.tools import Tool as Tool
    from mint.rl.tools import calculator as calculator
    from mint.rl.tools import python_tool as python_tool
    from mint.rl.tools import run_tools as run_tools
    from mint.rl.tools import search_tool as search_tool
    from mint.rl.tools import tool as tool

_NAMES = {
    "adapter": ["RLAdapter"],
    "advantage": ["advantages"],
    "chat": ["Chat", "ContextFull", "Reply", "TurnLimit"],
    "comparison": ["Comparison", "compare"],
    "config": ["RLConfig"],
    "credit": ["TurnScore", "assign_advantages", "per_turn"],
    "curriculum": ["Curriculum"],
    "dataset": ["DatasetTask"],
    "datums": ["build_datums"],
    "endings": ["CheckpointGone", "Interrupted", "RewardsFailed", "RunStopped", "ServiceLost"],
    "environment": ["Environment"],
    "evaluation": ["Evaluation", "evaluate"],
    "evaluator": ["Evaluator"],
    "examination": ["Examiner"],
    "grpo": ["run_grpo"],
    "guards": ["Guards"],
    "options": ["ConfigError"],
    "rehearsal": ["rehearse"],
    "results": ["SetResult"],
    "rollout": ["Group", "MissingLogprobs", "Rollout", "Segment"],
    "rows": ["DataError"],
    "run": ["Run"],
    "split": ["Split"],
    "tool_calls": ["parse_tool_calls"],
    "tools": ["Tool", "calculator", "python_tool", "run_tools", "search_tool", "tool"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
