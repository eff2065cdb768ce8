"""``mint eval``: evaluate a checkpoint or a base model on a task's holdout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mint.commands.shared.errors import exit_code
from mint.commands.training.evaluation_tables import print_comparison, print_result
from mint.commands.training.job_arguments import Arguments, read_arguments
from mint.config_error import ConfigError, closest
from mint.jobs.job import JOB, check_rewards, load_adapter, make_config, read_job
from mint.rl.loop.checkpoints import find_checkpoint

CHECKPOINT, AGAINST, SET, ENDPOINT = OWN = ("checkpoint", "against", "set", "endpoint")
BASE = "base"
USAGE = """\
usage: {program} [--cfg job] [--config-dir FOLDER] [checkpoint=PATH] [against=PATH] [set=NAME]
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
  {program} task=gsm8k endpoint=http://127.0.0.1:8000/v1 model.base_model=my-model

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
    checkpoint, against, endpoint = (own.get(name) for name in (CHECKPOINT, AGAINST, ENDPOINT))
    if endpoint and checkpoint:
        raise ConfigError("endpoint= evaluates a model served elsewhere: leave out checkpoint=.")
    if endpoint and against:
        raise ConfigError("against= compares checkpoints of the service: leave out endpoint=.")
    path = find_checkpoint(checkpoint) if checkpoint else None
    past = _past_job(checkpoint, path) if checkpoint and path else None
    asked.overrides = typed
    jobs = asked.jobs(past)
    if jobs is None:
        return 0
    other = None if against in (None, BASE) else find_checkpoint(str(against))
    check_rewards(composed.job for composed in jobs)
    import mint
    from mint.rl.evaluation.evaluator import Examiner

    cfg, adapter = make_config(jobs[0].job), load_adapter(jobs[0].job)
    examiner = Examiner(adapter, cfg, [own[SET]] if SET in own else [])
    if endpoint:
        what, found = (
            f"{cfg.base_model} at {endpoint}",
            examiner.of_endpoint(endpoint, cfg.base_model),
        )
    else:
        what, found = path or cfg.base_model, examiner.of(mint.ServiceClient(), path)
    for result in found.values():
        print_result(what, result)
    if against:
        print_comparison(other or cfg.base_model, examiner.of(mint.ServiceClient(), other), found)
    return 0


def _past_job(checkpoint: str, path: str) -> dict[str, Any] | None:
    """Return the settings of a run directory; None if the checkpoint was given by its path."""
    if checkpoint == path:
        return None
    if not (Path(checkpoint) / JOB).is_file():
        raise ConfigError(
            f"{checkpoint} has no {JOB}, so it was written by a script. Name the task and the "
            f"settings of the evaluation: mint eval checkpoint={path} task=custom task.adapter=..."
        )
    return read_job(Path(checkpoint))


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")
