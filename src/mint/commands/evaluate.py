"""``mint eval``: how good a checkpoint or a base model is on a task's holdout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint.commands.endings import told
from mint.commands.job_arguments import Arguments, read_arguments
from mint.commands.output import print_table
from mint.rl.options import ConfigError, closest
from mint.training.evaluate import checkpoint_of
from mint.training.job import JOB, adapter_of, check_rewards, config_of, read_job

if TYPE_CHECKING:
    from mint.rl.evaluation import Evaluation

CHECKPOINT = "checkpoint"
USAGE = """\
usage: {program} [--cfg job] [--config-dir FOLDER] [checkpoint=PATH] [OVERRIDE ...]

Evaluate a checkpoint on the prompts that training never sees: pass@1, pass@k and the reward, with
95% intervals. PATH is a tinker:// path, or a run directory for its best checkpoint, with the
settings of its run. Without it, the base model is evaluated.

  {program} model=smollm2 task=arithmetic
  {program} checkpoint=runs/math-arithmetic-1a2b3c4d
  {program} checkpoint=tinker://.../weights/step-000040 evaluation=pass_at_k

  -c, --cfg job        print the settings and do nothing
  --config-dir FOLDER  files of your own for the groups; default: conf, in the current folder
  -h, --help           this text
"""


def main(arguments: Sequence[str], program: str = "mint eval") -> int:
    """Run the command, and return its exit code."""
    return told(lambda: _evaluate(read_arguments(arguments, program, USAGE, None, sweeps=False)))


def _evaluate(asked: Arguments) -> int:
    typed = [each for each in asked.overrides if _key(each) != CHECKPOINT]
    named = [each.partition("=")[2] for each in asked.overrides if _key(each) == CHECKPOINT]
    for each in typed:
        if hint := closest(_key(each), [CHECKPOINT]):
            raise ConfigError(f"There is no {each}.{hint}")
    path = checkpoint_of(named[-1]) if named else None
    jobs = replace(asked, overrides=typed).jobs(_past_job(named[-1], path) if path else None)
    if jobs is None:
        return 0
    check_rewards(composed.job for composed in jobs)
    import mint
    from mint.rl.evaluator import Evaluator

    cfg, adapter = config_of(jobs[0].job), adapter_of(jobs[0].job)
    _print(path or cfg.base_model, Evaluator(adapter, cfg, mint.ServiceClient()).of(path))
    return 0


def _past_job(checkpoint: str, path: str) -> dict[str, Any] | None:
    """The settings of the run that a checkpoint is named by; None when it is named by its path."""
    if checkpoint == path:
        return None
    if not (Path(checkpoint) / JOB).is_file():
        raise ConfigError(
            f"{checkpoint} has no {JOB}, so a script made the run. Name the task and the settings "
            f"of the evaluation: mint eval checkpoint={path} task=custom task.adapter=..."
        )
    return read_job(Path(checkpoint))


def _print(what: str, found: Evaluation) -> None:
    print(f"{what} on {found.prompts} held-out prompts")
    names = {"pass_1": "pass@1", "pass_k": f"pass@{found.k}", "reward": "reward"}
    wanted = [metric for metric in names if metric != "pass_k" or found.k > 1]
    rows = [(names[metric], found.estimate(metric)) for metric in wanted]
    print_table(
        ["METRIC", "VALUE", "95% INTERVAL"],
        ([name, f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}"] for name, e in rows),
        "Nothing was evaluated.",
    )


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")
