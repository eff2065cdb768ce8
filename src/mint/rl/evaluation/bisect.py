"""Find where a run broke: search between a good checkpoint and a bad one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml

from mint.config_error import ConfigError
from mint.rl.evaluation.scores import Estimate, Evaluation, evaluations_in
from mint.rl.settings.config import RLConfig
from mint.watch.directory.reader import RunReader
from mint.watch.directory.recorder import CONFIG


@dataclass(frozen=True)
class Point:
    """A run after some step: its weights, unless they were deleted, and its evaluation."""

    step: int
    path: str | None
    evaluation: Evaluation | None = None
    gone: bool = False

    @property
    def weights(self) -> str:
        """The location of the weights, in words."""
        return "gone" if self.gone else self.path or "the base model"


class PastRun:
    """The settings and checkpoints of a run directory, which is only read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = RunReader(folder)
        if not (folder / CONFIG).is_file():
            raise ConfigError(f"{folder} is not a run directory: it has no {CONFIG}.")
        config = yaml.safe_load((folder / CONFIG).read_text())
        self.cfg = RLConfig(**{name: config[name] for name in config if name != "task"})

    def points(self) -> list[Point]:
        """Return every step that has a checkpoint or an evaluation, from the start to the last."""
        kept = self._reader.state().get("checkpoints", [])
        found = {0: self.cfg.start_from, **{each["step"]: each["path"] for each in kept}}
        evaluations = evaluations_in(self._reader.metrics())
        return [
            Point(step, found.get(step), evaluations.get(step), gone=step not in found)
            for step in sorted({*found, *evaluations})
        ]


Measure = Callable[[Point], Evaluation | None]  # evaluates a point; None when its weights are gone


def narrowed(
    steps: Sequence[int], good: int, bad: int, is_bad: Callable[[int], bool | None]
) -> tuple[int, int]:
    """Return the closest good and bad steps. Steps for which ``is_bad`` is None are left out.

    >>> narrowed(range(0, 100, 10), 0, 90, lambda step: step >= 40)
    (30, 40)
    """
    between = sorted(step for step in steps if good < step < bad)
    while between:
        middle = between[len(between) // 2]
        match is_bad(middle):
            case None:
                between.remove(middle)
            case True:
                bad, between = middle, [step for step in between if step < middle]
            case False:
                good, between = middle, [step for step in between if step > middle]
    return good, bad


@dataclass(frozen=True)
class BisectionResult:
    """The result of a bisection: ``broke`` between two points, ``held``, or ``unsure``."""

    kind: Literal["broke", "held", "unsure"]
    good: Point
    bad: Point
    fall: Estimate  # the difference from good to bad


class Bisection:
    """A search over the points of a run, which evaluates as few of them as it can."""

    def __init__(self, points: Sequence[Point], metric: str, measure: Measure) -> None:
        self.metric = metric
        self.points = {point.step: point for point in points}
        self.looked_at: dict[int, Literal["the run", "now"]] = {}  # the result, and its source
        self._measure = measure

    def search(
        self, good: int | None = None, bad: int | None = None, drop: float | None = None
    ) -> BisectionResult:
        """Find where the metric dropped between ``good`` (the best known) and ``bad`` (the last).

        A bad step is ``drop`` below the good one; without ``drop``, it is nearer to the bad one.
        """
        first, last = self._ends(good, bad)
        high = self.estimate(first)
        fall = high.above(self.estimate(last))
        if fall.value <= 0 or (drop is not None and fall.value < drop):
            return BisectionResult("held", self.points[first], self.points[last], fall)
        if drop is None and fall.low <= 0:
            return BisectionResult("unsure", self.points[first], self.points[last], fall)
        limit = high.value - (fall.value / 2 if drop is None else drop)

        def is_bad(step: int) -> bool | None:
            return self.estimate(step).value <= limit if self._found(step) else None

        known = [step for step, point in self.points.items() if point.evaluation is not None]
        first, last = narrowed(known, first, last, is_bad)
        first, last = narrowed(list(self.points), first, last, is_bad)
        fall = self.estimate(first).above(self.estimate(last))
        return BisectionResult("broke", self.points[first], self.points[last], fall)

    def estimate(self, step: int) -> Estimate:
        """Return the metric at a step that was evaluated."""
        evaluation = self.points[step].evaluation
        assert evaluation is not None
        return evaluation.estimate(self.metric)

    def _ends(self, good: int | None, bad: int | None) -> tuple[int, int]:
        steps = sorted(self.points)
        for step in (good, bad):
            if step is not None and (step not in self.points or not self._found(step)):
                raise ConfigError(f"There is no checkpoint of step {step}. {self._choices()}")
        last = bad if bad is not None else next(filter(self._found, reversed(steps)), None)
        first = good if good is not None else self._best([s for s in steps if s != last])
        if first is None or last is None or first == last:
            raise ConfigError(f"There are no two checkpoints to compare. {self._choices()}")
        if first > last:
            raise ConfigError(f"The good step, {first}, must come before the bad one, {last}.")
        return first, last

    def _best(self, steps: Sequence[int]) -> int | None:
        """Return the best known step, the earliest in a tie; the first step if none is known."""
        known = [step for step in steps if self.points[step].evaluation is not None]
        if known:
            steps = [max(known, key=lambda step: (self.estimate(step).value, -step))]
        return next(filter(self._found, steps), None)

    def _found(self, step: int) -> bool:
        """Return whether the metric at a step is known; evaluate the step first if necessary."""
        point = self.points[step]
        if point.evaluation is None and not point.gone:
            evaluation = self._measure(point)
            point = replace(point, evaluation=evaluation, gone=evaluation is None)
            self.points[step] = point
            self.looked_at[step] = "now"
        elif point.evaluation is not None:
            self.looked_at.setdefault(step, "the run")
        return point.evaluation is not None

    def _choices(self) -> str:
        there = [str(step) for step, point in sorted(self.points.items()) if not point.gone]
        return (
            f"There are weights of the steps {', '.join(there)} (0 is before training). A run "
            "keeps its best and its latest checkpoint, and more with keep_every=5."
        )
