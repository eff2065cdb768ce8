"""``mint train`` and ``run_training.py``: train as ``conf/`` and the command line say."""

import time
from collections.abc import Sequence
from pathlib import Path

from mint.commands.shared.errors import describe_error, exit_code, report_error
from mint.commands.shared.output import print_table
from mint.commands.training.job_arguments import Arguments, read_arguments
from mint.jobs.compose import Composed
from mint.jobs.job import check_rewards, check_tasks
from mint.jobs.sweep import COLUMNS, Sweep, table_row

USAGE = """\
usage: {program} [--multirun] [--cfg job] [--config-dir FOLDER] [OVERRIDE ...]

Train a model by reinforcement learning. An override is GROUP=FILE or GROUP.SETTING=VALUE:

  {program} +experiment=quick_test
  {program} task=gym task.arguments.task=gym:countdown model=smollm2
  {program} training.reward_function=check_answer training.log_rewards=true
  {program} -m sampling.temperature=0.7,1.0 training.seed=0,1

After an interruption, the same command resumes the run. `{program} bisect` finds the step at which
a run got worse.

  -m, --multirun       run every combination of values, and print a table at the end
  -c, --cfg job        print the settings and exit
  --config-dir FOLDER  your own files of settings; default: conf in the current folder
  -h, --help           show this help and exit
"""


def main(arguments: Sequence[str], program: str = "mint train", conf: Path | None = None) -> int:
    """Run the command, and return its exit code."""
    if arguments[:1] == ["bisect"]:
        from mint.commands.training.bisect import bisect

        return exit_code(lambda: bisect(list(arguments[1:])))
    return exit_code(lambda: _train(read_arguments(arguments, program, USAGE, conf, sweeps=True)))


def _train(asked: Arguments) -> int:
    jobs = asked.jobs()
    if jobs is None:
        return 0
    check_rewards(composed.job for composed in jobs)
    if asked.multirun:
        return _sweep(jobs)
    from mint.jobs.train import train

    train(jobs[0])
    return 0


def _sweep(jobs: Sequence[Composed]) -> int:
    """Run every job, even if others fail, and print one table."""
    sweep, complete = Sweep(jobs), False
    check_tasks(composed.job for composed in jobs)
    from mint.jobs.train import train

    try:
        for number, job in enumerate(jobs, start=1):
            print(f"[{number}/{len(jobs)}] {' '.join(job.swept)}", flush=True)
            since, failure = time.monotonic(), None
            try:
                train(job)
            except KeyboardInterrupt:
                failure = "interrupted"
                raise
            except Exception as error:
                report_error(error)
                failure = describe_error(error)
            finally:
                sweep.add(job, since, failure)
        complete = True
    finally:
        path = sweep.write(complete)
        print_table(COLUMNS, map(table_row, sweep.results))
        print(f"Table: {path}", flush=True)
    return 1 if sweep.failed else 0
