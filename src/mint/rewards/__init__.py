"""Rewards that are right about numbers, and everything a reward is built from.

Runs on the client, imports no torch, and is useful without the service. Names are loaded when they
are first used, so that ``from mint.rewards import check_answer`` is quick.

>>> from mint.rewards import check_answer
>>> check_answer("2 + 2 = 4. The answer is 4.", "4")
1.0
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mint.rewards.analysis import Analysis as Analysis
    from mint.rewards.analysis import analyse as analyse
    from mint.rewards.answers.arithmetic import RewardBreakdown as RewardBreakdown
    from mint.rewards.answers.arithmetic import compute_reward_breakdown as compute_reward_breakdown
    from mint.rewards.answers.arithmetic import extract_prediction as extract_prediction
    from mint.rewards.answers.checks import NumbersChecked as NumbersChecked
    from mint.rewards.answers.checks import check_answer as check_answer
    from mint.rewards.answers.checks import check_numbers as check_numbers
    from mint.rewards.answers.checks import is_correct as is_correct
    from mint.rewards.answers.extraction import extract_answer as extract_answer
    from mint.rewards.answers.extraction import extract_number as extract_number
    from mint.rewards.audit import audit_reward as audit_reward
    from mint.rewards.code.programs import program_tasks as program_tasks
    from mint.rewards.code.reward import CodeReward as CodeReward
    from mint.rewards.code.reward import extract_code as extract_code
    from mint.rewards.code.sandbox import Limits as Limits
    from mint.rewards.code.sandbox import Sandbox as Sandbox
    from mint.rewards.code.sandbox import SandboxUnavailable as SandboxUnavailable
    from mint.rewards.code.tests import AssertTest as AssertTest
    from mint.rewards.code.tests import CallTest as CallTest
    from mint.rewards.code.tests import StdioTest as StdioTest
    from mint.rewards.gym import reasoning_gym as reasoning_gym
    from mint.rewards.judges.endpoint import Budget as Budget
    from mint.rewards.judges.endpoint import ChatEndpoint as ChatEndpoint
    from mint.rewards.judges.judge import Criterion as Criterion
    from mint.rewards.judges.judge import JudgeReward as JudgeReward
    from mint.rewards.judges.pairwise import PairwiseJudge as PairwiseJudge
    from mint.rewards.judges.reward_model import Preference as Preference
    from mint.rewards.judges.reward_model import RewardModel as RewardModel
    from mint.rewards.judges.reward_model import train_reward_model as train_reward_model
    from mint.rewards.judges.strengths import bradley_terry as bradley_terry
    from mint.rewards.registry import find_reward as find_reward
    from mint.rewards.registry import list_rewards as list_rewards
    from mint.rewards.registry import register as register
    from mint.rewards.reward import Reward as Reward
    from mint.rewards.reward import RewardFailed as RewardFailed
    from mint.rewards.reward import as_reward as as_reward
    from mint.rewards.score import Failure as Failure
    from mint.rewards.score import Sample as Sample
    from mint.rewards.score import Score as Score
    from mint.rewards.scoring import Scored as Scored
    from mint.rewards.scoring import Scorer as Scorer
    from mint.rewards.scoring import TooManyFailures as TooManyFailures
    from mint.rewards.shaping.aspects import evaluate_clarity as evaluate_clarity
    from mint.rewards.shaping.aspects import evaluate_completeness as evaluate_completeness
    from mint.rewards.shaping.aspects import evaluate_conciseness as evaluate_conciseness
    from mint.rewards.shaping.aspects import evaluate_correctness as evaluate_correctness
    from mint.rewards.shaping.aspects import evaluate_format as evaluate_format
    from mint.rewards.shaping.aspects import evaluate_relevance as evaluate_relevance
    from mint.rewards.shaping.aspects import has_hallucination as has_hallucination
    from mint.rewards.shaping.aspects import has_reasoning_steps as has_reasoning_steps
    from mint.rewards.shaping.composition import clip as clip
    from mint.rewards.shaping.composition import floored as floored
    from mint.rewards.shaping.composition import gated as gated
    from mint.rewards.shaping.composition import multi_task as multi_task
    from mint.rewards.shaping.composition import schedule as schedule
    from mint.rewards.shaping.composition import shaped as shaped
    from mint.rewards.shaping.composition import weighted as weighted
    from mint.rewards.shaping.curriculum import SkillCurriculum as SkillCurriculum
    from mint.rewards.shaping.curriculum import linear_weights as linear_weights
    from mint.rewards.shaping.curriculum import staged_weights as staged_weights
    from mint.rewards.shaping.failure_patterns import failure_pattern as failure_pattern
    from mint.rewards.shaping.formats import (
        match_format_approximately as match_format_approximately,
    )
    from mint.rewards.shaping.formats import match_format_exactly as match_format_exactly
    from mint.rewards.shaping.instructions import check_case as check_case
    from mint.rewards.shaping.instructions import check_instructions as check_instructions
    from mint.rewards.shaping.instructions import check_json as check_json
    from mint.rewards.shaping.instructions import check_keywords as check_keywords
    from mint.rewards.shaping.instructions import check_length as check_length
    from mint.rewards.shaping.instructions import check_structure as check_structure
    from mint.rewards.shaping.instructions import check_tool_use as check_tool_use
    from mint.rewards.shaping.normalisation import RunningNormaliser as RunningNormaliser
    from mint.rewards.shaping.normalisation import centre as centre
    from mint.rewards.shaping.normalisation import min_max as min_max
    from mint.rewards.shaping.normalisation import normalise_by_batch as normalise_by_batch
    from mint.rewards.shaping.normalisation import normalise_by_group as normalise_by_group
    from mint.rewards.shaping.normalisation import z_scores as z_scores
    from mint.rewards.shaping.patterns import binary_reward as binary_reward
    from mint.rewards.shaping.patterns import combined_reward as combined_reward
    from mint.rewards.shaping.patterns import composite_reward as composite_reward
    from mint.rewards.shaping.patterns import continuous_reward as continuous_reward
    from mint.rewards.shaping.patterns import graduated_reward as graduated_reward
    from mint.rewards.shaping.patterns import is_partially_correct as is_partially_correct
    from mint.rewards.shaping.patterns import robust_reward as robust_reward
    from mint.rewards.shaping.patterns import shaped_reward as shaped_reward
    from mint.rewards.shaping.patterns import stable_reward as stable_reward
    from mint.rewards.shaping.penalties import length_penalty as length_penalty
    from mint.rewards.shaping.penalties import overlong_penalty as overlong_penalty
    from mint.rewards.shaping.penalties import repetition_penalty as repetition_penalty
    from mint.rewards.shaping.penalties import step_count_penalty as step_count_penalty
    from mint.rewards.shaping.penalties import tool_cost_penalty as tool_cost_penalty
    from mint.rewards.shaping.penalties import tool_spam_penalty as tool_spam_penalty
    from mint.rewards.shaping.penalties import unsafe_penalty as unsafe_penalty
    from mint.rewards.shaping.penalties import verbosity_penalty as verbosity_penalty
    from mint.rewards.signature import SignatureError as SignatureError
    from mint.rewards.tasks import Task as Task
    from mint.rewards.tasks import arithmetic_tasks as arithmetic_tasks
    from mint.rewards.tasks import code_tasks as code_tasks
    from mint.rewards.tasks import countdown_reward as countdown_reward
    from mint.rewards.tasks import countdown_tasks as countdown_tasks

_NAMES = {
    "analysis": ["Analysis", "analyse"],
    "answers.checks": ["NumbersChecked", "check_answer", "check_numbers", "is_correct"],
    "answers.arithmetic": ["RewardBreakdown", "compute_reward_breakdown", "extract_prediction"],
    "shaping.aspects": [
        *["evaluate_clarity", "evaluate_completeness", "evaluate_conciseness"],
        *["evaluate_correctness", "evaluate_format", "evaluate_relevance"],
        *["has_hallucination", "has_reasoning_steps"],
    ],
    "audit": ["audit_reward"],
    "code.reward": ["CodeReward", "extract_code"],
    "code.tests": ["AssertTest", "CallTest", "StdioTest"],
    "shaping.composition": [
        "clip",
        "floored",
        "gated",
        "multi_task",
        "schedule",
        "shaped",
        "weighted",
    ],
    "shaping.curriculum": ["SkillCurriculum", "linear_weights", "staged_weights"],
    "judges.endpoint": ["ChatEndpoint", "Budget"],
    "answers.extraction": ["extract_answer", "extract_number"],
    "shaping.failure_patterns": ["failure_pattern"],
    "shaping.formats": ["match_format_approximately", "match_format_exactly"],
    "gym": ["reasoning_gym"],
    "shaping.instructions": [
        *["check_case", "check_instructions", "check_json", "check_keywords", "check_length"],
        *["check_structure", "check_tool_use"],
    ],
    "judges.judge": ["Criterion", "JudgeReward"],
    "shaping.normalisation": [
        *["RunningNormaliser", "centre", "min_max", "normalise_by_batch", "normalise_by_group"],
        "z_scores",
    ],
    "judges.pairwise": ["PairwiseJudge"],
    "shaping.patterns": [
        *["binary_reward", "combined_reward", "composite_reward", "continuous_reward"],
        *["graduated_reward", "is_partially_correct", "robust_reward", "shaped_reward"],
        "stable_reward",
    ],
    "shaping.penalties": [
        *["length_penalty", "overlong_penalty", "repetition_penalty", "step_count_penalty"],
        *["tool_cost_penalty", "tool_spam_penalty", "unsafe_penalty", "verbosity_penalty"],
    ],
    "code.programs": ["program_tasks"],
    "registry": ["find_reward", "list_rewards", "register"],
    "reward": ["Reward", "RewardFailed", "as_reward"],
    "judges.reward_model": ["Preference", "RewardModel", "train_reward_model"],
    "code.sandbox": ["Limits", "Sandbox", "SandboxUnavailable"],
    "score": ["Failure", "Sample", "Score"],
    "scoring": ["Scored", "Scorer", "TooManyFailures"],
    "signature": ["SignatureError"],
    "judges.strengths": ["bradley_terry"],
    "tasks": ["Task", "arithmetic_tasks", "code_tasks", "countdown_reward", "countdown_tasks"],
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
