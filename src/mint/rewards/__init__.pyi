"""The public names of mint.rewards, for type checkers and for loading each at its first use."""

# ruff: noqa: I001  (names of one module stand together)

from .analysis import (
    Analysis as Analysis,
    analyse as analyse,
    failure_pattern as failure_pattern,
)
from .answers.arithmetic import (
    RewardBreakdown as RewardBreakdown,
    compute_reward_breakdown as compute_reward_breakdown,
    extract_prediction as extract_prediction,
)
from .answers.checks import (
    NumbersChecked as NumbersChecked,
    check_answer as check_answer,
    check_numbers as check_numbers,
    is_correct as is_correct,
)
from .answers.extraction import extract_answer as extract_answer, extract_number as extract_number
from .audit import audit_reward as audit_reward
from .code.reward import CodeReward as CodeReward, extract_code as extract_code
from .code.sandbox import (
    Limits as Limits,
    Sandbox as Sandbox,
    SandboxUnavailable as SandboxUnavailable,
)
from .code.tests import AssertTest as AssertTest, CallTest as CallTest, StdioTest as StdioTest
from .judges.endpoint import Budget as Budget, ChatEndpoint as ChatEndpoint
from .judges.judge import Criterion as Criterion, JudgeReward as JudgeReward
from .judges.pairwise import PairwiseJudge as PairwiseJudge, bradley_terry as bradley_terry
from .judges.reward_model import (
    Preference as Preference,
    RewardModel as RewardModel,
    train_reward_model as train_reward_model,
)
from .registry import find_reward as find_reward, list_rewards as list_rewards, register as register
from .reward import Reward as Reward, RewardFailed as RewardFailed, as_reward as as_reward
from .score import Failure as Failure, Sample as Sample, Score as Score
from .scoring import Scored as Scored, Scorer as Scorer, TooManyFailures as TooManyFailures
from .shaping.aspects import (
    evaluate_clarity as evaluate_clarity,
    evaluate_completeness as evaluate_completeness,
    evaluate_conciseness as evaluate_conciseness,
    evaluate_correctness as evaluate_correctness,
    evaluate_format as evaluate_format,
    evaluate_relevance as evaluate_relevance,
    has_hallucination as has_hallucination,
    has_reasoning_steps as has_reasoning_steps,
)
from .shaping.composition import (
    clip as clip,
    floored as floored,
    gated as gated,
    multi_task as multi_task,
    schedule as schedule,
    shaped as shaped,
    weighted as weighted,
)
from .shaping.curriculum import (
    SkillCurriculum as SkillCurriculum,
    linear_weights as linear_weights,
    staged_weights as staged_weights,
)
from .shaping.formats import (
    match_format_approximately as match_format_approximately,
    match_format_exactly as match_format_exactly,
)
from .shaping.instructions import (
    check_case as check_case,
    check_instructions as check_instructions,
    check_json as check_json,
    check_keywords as check_keywords,
    check_length as check_length,
    check_structure as check_structure,
    check_tool_use as check_tool_use,
)
from .shaping.normalisation import (
    RunningNormaliser as RunningNormaliser,
    centre as centre,
    min_max as min_max,
    normalise_by_batch as normalise_by_batch,
    normalise_by_group as normalise_by_group,
    z_scores as z_scores,
)
from .shaping.patterns import (
    binary_reward as binary_reward,
    combined_reward as combined_reward,
    composite_reward as composite_reward,
    continuous_reward as continuous_reward,
    graduated_reward as graduated_reward,
    is_partially_correct as is_partially_correct,
    robust_reward as robust_reward,
    shaped_reward as shaped_reward,
    stable_reward as stable_reward,
)
from .shaping.penalties import (
    length_penalty as length_penalty,
    overlong_penalty as overlong_penalty,
    repetition_penalty as repetition_penalty,
    step_count_penalty as step_count_penalty,
    tool_cost_penalty as tool_cost_penalty,
    tool_spam_penalty as tool_spam_penalty,
    unsafe_penalty as unsafe_penalty,
    verbosity_penalty as verbosity_penalty,
)
from .signature import SignatureError as SignatureError
from .tasks import (
    Task as Task,
    arithmetic_tasks as arithmetic_tasks,
    code_tasks as code_tasks,
    countdown_reward as countdown_reward,
    countdown_tasks as countdown_tasks,
    program_tasks as program_tasks,
    reasoning_gym as reasoning_gym,
)
