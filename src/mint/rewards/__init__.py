"""Rewards that are right about numbers, and everything a reward is built from.

Runs on the client, imports no torch, and is useful without the service. Names are loaded when they
are first used, so that ``from mint.rewards import check_answer`` is quick.

>>> from mint.rewards import check_answer
>>> check_answer("2 + 2 = 4. The answer is 4.", "4")
1.0
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "analysis": ["Analysis", "analyse"],
    "answers": ["NumbersChecked", "check_answer", "check_numbers", "is_correct"],
    "arithmetic": ["RewardBreakdown", "compute_reward_breakdown", "extract_prediction"],
    "aspects": [
        *["evaluate_clarity", "evaluate_completeness", "evaluate_conciseness"],
        *["evaluate_correctness", "evaluate_format", "evaluate_relevance"],
        *["has_hallucination", "has_reasoning_steps"],
    ],
    "audit": ["audit_reward"],
    "bradley_terry": ["bradley_terry"],
    "code": ["CodeReward", "extract_code"],
    "code_tests": ["AssertTest", "CallTest", "StdioTest"],
    "composition": ["clip", "floored", "gated", "multi_task", "schedule", "shaped", "weighted"],
    "curriculum": ["SkillCurriculum", "linear_weights", "staged_weights"],
    "endpoint": ["ChatEndpoint", "Budget"],
    "extraction": ["extract_answer", "extract_number"],
    "failures": ["failure_pattern"],
    "formats": ["match_format_approximately", "match_format_exactly"],
    "gym": ["reasoning_gym"],
    "instructions": [
        *["check_case", "check_instructions", "check_json", "check_keywords", "check_length"],
        *["check_structure", "check_tool_use"],
    ],
    "judge": ["Criterion", "JudgeReward"],
    "normalisation": [
        *["RunningNormaliser", "centre", "min_max", "normalise_by_batch", "normalise_by_group"],
        "z_scores",
    ],
    "pairwise": ["PairwiseJudge"],
    "patterns": [
        *["binary_reward", "combined_reward", "composite_reward", "continuous_reward"],
        *["graduated_reward", "is_partially_correct", "robust_reward", "shaped_reward"],
        "stable_reward",
    ],
    "penalties": [
        *["length_penalty", "overlong_penalty", "repetition_penalty", "step_count_penalty"],
        *["tool_cost_penalty", "tool_spam_penalty", "unsafe_penalty", "verbosity_penalty"],
    ],
    "registry": ["find_reward", "list_rewards", "register"],
    "reward": ["Reward", "RewardFailed", "as_reward"],
    "reward_model": ["Preference", "RewardModel", "train_reward_model"],
    "sandbox": ["Limits", "Sandbox", "SandboxUnavailable"],
    "score": ["Failure", "Sample", "Score"],
    "scoring": ["Scored", "Scorer", "TooManyFailures"],
    "signature": ["SignatureError"],
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
