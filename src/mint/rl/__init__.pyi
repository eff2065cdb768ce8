"""The public names of mint.rl, for type checkers and for loading each at its first use."""

# ruff: noqa: I001  (names of one module stand together)

from .agents.chat import (
    Chat as Chat,
    ContextFull as ContextFull,
    Reply as Reply,
    TurnLimit as TurnLimit,
)
from .agents.environment import Environment as Environment
from .agents.episodes import (
    GymnasiumEnvironment as GymnasiumEnvironment,
    OpenEnvEnvironment as OpenEnvEnvironment,
)
from .agents.openenv import OpenEnvSocket as OpenEnvSocket
from .agents.rehearsal import rehearse as rehearse
from .agents.tools import (
    Tool as Tool,
    ToolError as ToolError,
    calculator as calculator,
    python_tool as python_tool,
    run_tools as run_tools,
    search_tool as search_tool,
    tool as tool,
)
from .algorithms.advantage import advantages as advantages
from .data.curriculum import Curriculum as Curriculum
from .data.dataset import DatasetTask as DatasetTask
from .data.file_formats import DataError as DataError
from .data.split import Split as Split
from .datums.datum import build_datums as build_datums
from .evaluation.comparison import Comparison as Comparison, compare as compare
from .evaluation.evaluator import (
    Evaluator as Evaluator,
    Examiner as Examiner,
    SetEvaluator as SetEvaluator,
)
from .evaluation.results import SetResult as SetResult
from .evaluation.scores import Evaluation as Evaluation, evaluate as evaluate
from .guards import Guards as Guards
from .loop.grpo import grpo as grpo, run_grpo as run_grpo, run_loop as run_loop
from .loop.run import Run as Run, open_run as open_run
from .loop.stages import (
    compare_answers as compare_answers,
    mini_batch_sizes as mini_batch_sizes,
    penalise as penalise,
    policy_before as policy_before,
    sample as sample,
    with_signal as with_signal,
)
from .loop.update import service_loss as service_loss, train as train
from .messages.tool_calls import parse_tool_calls as parse_tool_calls
from .rollouts.credit import (
    TurnScore as TurnScore,
    assign_advantages as assign_advantages,
    per_token as per_token,
    per_turn as per_turn,
)
from .rollouts.rollout import (
    Group as Group,
    MissingLogprobs as MissingLogprobs,
    Rollout as Rollout,
    Segment as Segment,
)
from .runtime.endings import (
    CheckpointGone as CheckpointGone,
    Interrupted as Interrupted,
    RewardsFailed as RewardsFailed,
    RunStopped as RunStopped,
    ServiceLost as ServiceLost,
)
from .settings.config import ConfigError as ConfigError, RLConfig as RLConfig
from .settings.schedules import learning_rate_at as learning_rate_at
from .task import RLAdapter as RLAdapter
