"""``mint train bisect``: find the steps at which a run got worse."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint.commands.shared.output import print_table
from mint.config_error import ConfigError
from mint.rl.evaluation.scores import METRICS, Estimate

if TYPE_CHECKING:
    from mint.rl.evaluation.bisect import Bisection, BisectionResult, Measure, PastRun, Point
    from mint.rl.evaluation.scores import Evaluation

_NAMES = {"pass_1": "pass@1", "pass_k": "pass@k", "reward": "reward"}


def bisect(arguments: Sequence[str]) -> int:
    """Evaluate a run's checkpoints to find the steps at which a holdout metric dropped."""
    from mint.rl.evaluation.bisect import Bisection, PastRun

    asked = _parser().parse_args(arguments)
    if asked.drop is not None and not asked.drop > 0:
        raise ConfigError(f"--drop is {asked.drop:g}; it must be above 0.")
    run = PastRun(asked.run_dir)
    points, good = run.points(), asked.good
    if asked.prompts is not None:
        run.cfg.holdout_size = asked.prompts
        good = _best_known(points, asked.metric, asked.bad) if good is None else good
        points = [replace(point, evaluation=None) for point in points]
    bisection = Bisection(points, asked.metric, _measure(run, asked.task, asked.url))
    verdict = bisection.search(good, asked.bad, asked.drop)
    _print_evaluated(bisection)
    print(_describe(verdict, run, _NAMES[asked.metric], asked.drop))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mint train bisect",
        description="Find the steps between which a holdout metric of a run dropped, from the "
        "run's own evaluations and a binary search over its checkpoints.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    parser.add_argument("--metric", choices=METRICS, default="pass_1")
    parser.add_argument("--good", type=int, metavar="STEP", help="default: the best evaluated step")
    parser.add_argument("--bad", type=int, metavar="STEP", help="default: the last step")
    parser.add_argument(
        "--drop",
        type=float,
        metavar="X",
        help="how far below the good step a bad one is; default: half",
    )
    parser.add_argument(
        "--prompts", type=int, metavar="N", help="re-evaluate everything on N held-out prompts"
    )
    parser.add_argument(
        "--task",
        metavar="FILE.py:CLASS",
        help="the task, for a run from a script; default: from job.yaml",
    )
    parser.add_argument("--url", help="the service; default: MINT_BASE_URL, or an embedded one")
    return parser


def _best_known(points: Sequence[Point], metric: str, bad: int | None) -> int | None:
    """Return the best step by the run's own evaluations, of those whose weights still exist."""
    last = max(point.step for point in points) if bad is None else bad
    known = {
        point.step: point.evaluation.estimate(metric).value
        for point in points
        if point.evaluation is not None and not point.gone and point.step < last
    }
    return max(known, key=lambda step: (known[step], -step), default=None)


def _measure(run: PastRun, task: str | None, url: str | None) -> Measure:
    """Return a function that evaluates points; the service is started for the first."""
    import mint
    from mint.rl.evaluation.evaluator import Evaluator

    adapter = _task(run, task)
    evaluator = cache(lambda: Evaluator(adapter, run.cfg, mint.ServiceClient(base_url=url)))

    def measure(point: Point) -> Evaluation | None:
        print(f"Evaluating step {point.step}: {point.weights}", flush=True)
        try:
            return evaluator().of(point.path)
        except (mint.NotFoundError, mint.BadRequestError) as error:
            if point.path is None:
                raise
            print(f"  no longer exists: {error.message}", flush=True)
            return None

    return measure


def _task(run: PastRun, reference: str | None) -> Any:
    from mint.jobs.job import JOB, load_adapter, read_job
    from mint.jobs.task import TaskReference

    if reference is not None:
        TaskReference.read(reference).check({})
        task = {"adapter": reference, "arguments": {}}
        return load_adapter({"task": task, "training": {"reward_function": None}})
    if not (run.folder / JOB).is_file():
        raise ConfigError(
            f"{run.folder} has no {JOB}, so it was written by a script. Name its task: "
            "--task demos/rl/adapters/verifiable_math.py:VerifiableMathAdapter"
        )
    return load_adapter(read_job(run.folder))


def _print_evaluated(bisection: Bisection) -> None:
    rows = []
    for step in sorted(bisection.looked_at):
        point, found = bisection.points[step], "-"
        if point.evaluation is not None:
            estimate = bisection.estimate(step)
            found = f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
        rows.append([str(step), found, bisection.looked_at[step], point.weights])
    name = _NAMES[bisection.metric].upper()
    print_table(["STEP", f"{name} (95%)", "EVALUATED", "WEIGHTS"], rows)


def _describe(verdict: BisectionResult, run: PastRun, metric: str, drop: float | None) -> str:
    good, bad, fall = verdict.good, verdict.bad, verdict.fall
    between = f"from step {good.step} to step {bad.step}"
    if verdict.kind == "held":
        asked = f" by {drop:g}" if drop is not None else ""
        return (
            f"No drop: {metric} did not fall{asked} {between} ({_signed(fall)}). "
            "If a step in between was better, name it: --good STEP"
        )
    if verdict.kind == "unsure":
        return (
            f"{metric} fell {between}, but no more than chance explains: {_signed(fall)}. Use more "
            f"prompts: --prompts {4 * (bad.evaluation.prompts if bad.evaluation else 64)}, or set "
            "the drop to look for: --drop 0.05"
        )
    is_one = bad.step - good.step == 1
    steps = f"step {bad.step}" if is_one else f"the steps {good.step + 1} to {bad.step}"
    lines = [
        f"Good at step {good.step}, bad at step {bad.step}: {metric} changed by {_signed(fall)}.",
        f"  good: {good.weights}",
        f"  bad:  {bad.weights}",
        f"Look at {steps} of {run.folder / 'metrics.jsonl'} and {run.folder / 'rollouts'}.",
    ]
    if fall.low <= 0:
        lines.append("The two may differ by chance: the step is uncertain. See --prompts.")
    if not is_one:
        finer = max(1, (bad.step - good.step) // 4)
        lines.append(
            f"No weights between them were kept. keep_every={finer} in the next run narrows it "
            "further."
        )
    return "\n".join(lines)


def _signed(fall: Estimate) -> str:
    change, low, high = (0 - value for value in (fall.value, fall.high, fall.low))  # never "-0.000"
    return f"{change:+.3f}, 95% interval {low:+.3f} to {high:+.3f}"
