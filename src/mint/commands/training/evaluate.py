"""``mint eval``: evaluate a checkpoint or a base model on a task's holdout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mint.commands.shared.errors import exit_code
from mint.commands.shared.output import print_table
from mint.commands.training.job_arguments import Arguments, read_arguments
from mint.config_error import ConfigError, closest
from mint.jobs.job import JOB, check_rewards, load_adapter, make_config, read_job
from mint.rl.loop.checkpoints import find_checkpoint

if TYPE_CHECKING:
    from mint.rl.evaluation.results import SetResult

OWN = ("checkpoint", "against", "set", "endpoint")
USAGE = """\
usage: {program} [OPTION ...] [checkpoint=PATH] [against=PATH] [set=NAME]
       [endpoint=URL] [OVERRIDE ...]

Evaluate a checkpoint on held-out prompts: pass@1, pass@k, majority vote and reward, with 95%
intervals, and by category if the task has categories. PATH is a tinker:// path, or a run directory,
which stands for its best checkpoint and its settings. Without it, the base model is evaluated.
against=PATH compares with another checkpoint, and against=base with the base model, on the same
prompts with a paired test. set=NAME selects one of the task's sets: holdout, or one of its
build_eval_sets(). endpoint=URL evaluates model.base_model on an OpenAI-compatible server, with the
key in OPENAI_API_KEY.

  {program} model=smollm2 task=arithmetic
  {program} checkpoint=runs/math-arithmetic-1a2b3c4d against=base
  {program} checkpoint=tinker://.../weights/step-000040 evaluation=pass_at_k
  {program} task=gsm8k endpoint=http://gpu:8000/v1 model.base_model=my-model

  -c, --cfg job        print the settings and exit
  --config-dir FOLDER  your own files of settings; default: conf in the current folder
  -h, --help           show this help and exit
"""


def main(arguments: Sequence[str], program: str = "mint eval") -> int:
    """Run the command, and return its exit code."""
    return exit_code(
        lambda: _evaluate(read_arguments(arguments, program, USAGE, None, sweeps=False))
    )


def _evaluate(asked: Arguments) -> int:
    typed = [each for each in asked.overrides if _key(each) not in OWN]
    own = {_key(e): e.partition("=")[2] for e in asked.overrides if _key(e) in OWN}
    for each in typed:
        if hint := closest(_key(each), OWN):
            raise ConfigError(f"There is no {each}.{hint}")
    checkpoint, against, wanted_set, endpoint = (own.get(name) for name in OWN)
    if endpoint and checkpoint:
        raise ConfigError("endpoint= evaluates a model served elsewhere: leave out checkpoint=.")
    if endpoint and against:
        raise ConfigError("against= compares checkpoints of the service: leave out endpoint=.")
    path = find_checkpoint(checkpoint) if checkpoint else None
    past = None
    if checkpoint and checkpoint != path:  # a run directory
        if not (Path(checkpoint) / JOB).is_file():
            raise ConfigError(
                f"{checkpoint} has no {JOB}, so it was written by a script. Name the task and the "
                f"settings of the evaluation: mint eval checkpoint={path} task=custom "
                "task.adapter=..."
            )
        past = read_job(Path(checkpoint))
    asked.overrides = typed
    jobs = asked.jobs(past)
    if jobs is None:
        return 0
    other = None if against in (None, "base") else find_checkpoint(str(against))
    check_rewards(composed.job for composed in jobs)
    import mint
    from mint.rl.evaluation.evaluator import SetEvaluator

    cfg, adapter = make_config(jobs[0].job), load_adapter(jobs[0].job)
    evaluator = SetEvaluator(adapter, cfg, [] if wanted_set is None else [wanted_set])
    if endpoint:
        what = f"{cfg.base_model} at {endpoint}"
        found = evaluator.of_endpoint(endpoint, cfg.base_model)
    else:
        what, found = path or cfg.base_model, evaluator.of(mint.ServiceClient(), path)
    for result in found.values():
        _print_result(what, result)
    if against:
        from mint.rl.evaluation.comparison import compare

        before = evaluator.of(mint.ServiceClient(), other)
        for name, result in found.items():
            compared = compare(before[name], result)
            print(f"{name}, against {other or cfg.base_model}: {compared}")
    return 0


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _print_result(what: str, result: SetResult) -> None:
    """Print the result of a model on one set."""
    which = "held-out prompts" if result.name == "holdout" else f"prompts of {result.name}"
    print(f"{what} on {len(result.prompts)} {which}")
    for line in result.evaluation.exceptions():
        print(f"{line}.")
    print_table(["METRIC", "VALUE", "95% INTERVAL"], _rows(result))
    rows = []
    for name, each in result.by_category().items():
        found = each.evaluation
        interval = f"{found.low:.3f} to {found.high:.3f}"
        figures = [f"{found.pass_1:.3f}", interval, f"{found.reward:.3f}"]
        rows.append([name, str(len(each.prompts)), *figures])
    if rows:
        print_table(["CATEGORY", "PROMPTS", "PASS@1", "95% INTERVAL", "REWARD"], rows)


def _rows(result: SetResult) -> Iterator[list[str]]:
    found = result.evaluation
    for k, share in result.passes().items():
        metric = {1: "pass_1", found.k: "pass_k"}.get(k)
        interval = found.estimate(metric) if metric else None
        shown = f"{interval.low:.3f} to {interval.high:.3f}" if interval else ""
        yield [f"pass@{k}", f"{share:.3f}", shown]
    if result.samples > 1:
        yield [f"majority@{result.samples}", f"{result.majority():.3f}", ""]
    reward = found.estimate("reward")
    yield ["reward", f"{reward.value:.3f}", f"{reward.low:.3f} to {reward.high:.3f}"]
