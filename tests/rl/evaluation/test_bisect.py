"""Bisection: the two neighbouring steps between which a metric dropped, with few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import mint
from mint.commands.training.bisect import bisect
from mint.rl import ConfigError, Evaluation, RLConfig, evaluate, run_grpo
from mint.rl.evaluation.bisect import Bisection, Point, narrowed
from mint.watch.directory.recorder import EVENTS, read_rows
from tests.rl.evaluation.test_evaluator import HELD, Fooled

Settings = Callable[..., RLConfig]
STEPS = st.lists(st.integers(1, 10_000), min_size=2, max_size=60, unique=True).map(sorted)


@given(STEPS, st.data())
def test_the_search_ends_at_the_step_that_broke(steps: list[int], data: st.DataObject) -> None:
    broke = data.draw(st.sampled_from(steps[1:]))
    asked: list[int] = []

    def is_bad(step: int) -> bool:
        asked.append(step)
        return step >= broke

    good, bad = narrowed(steps, steps[0], steps[-1], is_bad)
    assert bad == broke
    assert good == steps[steps.index(broke) - 1]
    assert len(asked) == len(set(asked)) <= math.ceil(math.log2(len(steps)))


@given(STEPS, st.data())
def test_bisection_ends_between_a_good_and_a_bad_step_whatever_is_missing_or_noisy(
    steps: list[int], data: st.DataObject
) -> None:
    told = {step: data.draw(st.sampled_from([True, False, None])) for step in steps[1:-1]}
    good, bad = narrowed(steps, steps[0], steps[-1], told.__getitem__)
    assert told.get(good, False) is False
    assert told.get(bad, True) is True
    assert all(told[step] is None for step in steps if good < step < bad)


def result(right: int, count: int = 100) -> Evaluation:
    return evaluate([[float(i < right)] for i in range(count)], threshold=1.0)


def points(known: dict[int, int], kept: list[int], gone: tuple[int, ...] = ()) -> list[Point]:
    steps = sorted({*known, *kept, *gone})
    evaluations = {step: result(right) for step, right in known.items()}
    return [
        Point(step, f"tinker://{step}", evaluations.get(step), gone=step not in kept)
        for step in steps
    ]


class Weights:
    """Checkpoints that solve so many of 100 problems; those that are not named are gone."""

    def __init__(self, **right: int) -> None:
        self.right = {int(step[1:]): count for step, count in right.items()}
        self.asked: list[int] = []

    def __call__(self, point: Point) -> Evaluation | None:
        self.asked.append(point.step)
        return result(self.right[point.step]) if point.step in self.right else None


def test_what_the_run_has_evaluated_is_not_evaluated_again() -> None:
    weights = Weights(_25=80, _30=20, _35=20)
    run = points({0: 50, 20: 80, 40: 20}, kept=[0, 20, 25, 30, 35, 40])
    verdict = Bisection(run, "pass_1", weights).search()
    assert (verdict.kind, verdict.good.step, verdict.bad.step) == ("broke", 25, 30)
    assert weights.asked == [30, 25]
    assert verdict.fall.value == pytest.approx(0.6)


def test_an_evaluation_narrows_the_search_even_when_its_weights_are_gone() -> None:
    weights = Weights()
    run = points({0: 50, 10: 80, 20: 78, 30: 20, 40: 20}, kept=[0, 10, 40])
    verdict = Bisection(run, "pass_1", weights).search()
    assert (verdict.good.step, verdict.bad.step) == (20, 30)
    assert verdict.good.weights == "gone"
    assert weights.asked == []


def test_weights_that_are_gone_when_asked_for_are_passed_over() -> None:
    weights = Weights(_0=80, _10=79, _40=20)
    bisection = Bisection(points({}, kept=[0, 10, 20, 30, 40, 50]), "pass_1", weights)
    verdict = bisection.search()
    assert (verdict.good.step, verdict.bad.step) == (10, 40)
    assert weights.asked[0] == 50
    assert bisection.points[20].gone


def test_a_run_that_ends_at_its_best_did_not_break() -> None:
    run = points({0: 50, 10: 60, 20: 70}, kept=[0, 10, 20])
    assert Bisection(run, "pass_1", Weights()).search().kind == "held"


def test_a_fall_within_the_interval_is_not_called_a_break_unless_asked_for() -> None:
    run = points({0: 50, 10: 55, 20: 52}, kept=[0, 10, 20])
    assert Bisection(run, "pass_1", Weights()).search().kind == "unsure"
    assert Bisection(run, "pass_1", Weights()).search(drop=0.02).kind == "broke"
    assert Bisection(run, "pass_1", Weights()).search(drop=0.2).kind == "held"


def test_drop_says_how_far_under_the_good_one_is_bad() -> None:
    run = points({0: 90, 10: 80, 20: 50, 30: 10}, kept=[0, 30])
    assert Bisection(run, "pass_1", Weights()).search(drop=0.05).bad.step == 10
    assert Bisection(run, "pass_1", Weights()).search(drop=0.3).bad.step == 20


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"good": 15}, "no checkpoint of step 15.*0, 10, 20"),
        ({"good": 20, "bad": 10}, "before"),
        ({"good": 20}, "no two checkpoints"),
    ],
)
def test_ends_that_cannot_be_are_refused_with_those_that_can(asked: Any, said: str) -> None:
    run = points({0: 50, 10: 60, 20: 70}, kept=[0, 10, 20])
    with pytest.raises(ConfigError, match=said):
        Bisection(run, "pass_1", Weights()).search(**asked)


def test_a_single_checkpoint_cannot_be_bisected() -> None:
    with pytest.raises(ConfigError, match=r"no two checkpoints.*keep_every"):
        Bisection(points({}, kept=[10]), "pass_1", Weights(_10=50)).search()


# ---- the command, on a real run ----


TASK = "from tests.rl.evaluation.test_evaluator import Fooled\n\nclass Task(Fooled):\n    pass\n"


@pytest.fixture
def broken_run(client: mint.ServiceClient, settings: Settings, tmp_path: Path) -> Path:
    """A run that is paid for unlearning what the holdout asks for, and keeps every checkpoint."""
    cfg = settings(
        **{**HELD, "holdout_size": 32},
        steps=4,
        batch_size=4,
        group_size=8,
        learning_rate=0.1,
        checkpoint_every=1,
        keep_every=1,
        eval_every=4,
        eval_samples=4,
        eval_temperature=1.0,
    )
    run_grpo(Fooled(), cfg, service=client)
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path / "run"


def test_the_command_finds_where_a_run_broke(
    broken_run: Path, service: str, client: mint.ServiceClient, capsys: Any
) -> None:
    reference = f"{broken_run.parent / 'task.py'}:Task"
    job = {"adapter": reference, "arguments": {}}
    nothing = {"reward_function": None, "reward_workers": 0}
    asked = [str(broken_run), "--metric", "reward", "--url", service]
    capsys.readouterr()

    with pytest.raises(ConfigError, match="--task"):
        bisect(asked)
    assert bisect([*asked, "--task", reference]) == 0
    printed = capsys.readouterr().out
    answer = next(line for line in printed.splitlines() if line.startswith("Good at step"))
    good, bad = (int(word.rstrip(",:")) for word in answer.split() if word.rstrip(",:").isdigit())
    assert bad == good + 1
    assert f"Look at step {bad} of {broken_run / 'metrics.jsonl'}" in printed
    assert printed.count("Evaluating step") <= 2
    paths = {e["step"]: e["path"] for e in read_rows(broken_run / EVENTS) if "path" in e}
    assert f"bad:  {paths[bad]}" in printed

    (broken_run / "job.yaml").write_text(yaml.safe_dump({"task": job, "training": nothing}))
    assert bisect(asked) == 0
    assert answer in capsys.readouterr().out

    for step in (1, 2, 3):
        client.create_rest_client().delete_checkpoint_from_tinker_path(paths[step]).result()
    assert bisect(asked) == 0
    printed = capsys.readouterr().out
    assert "Good at step 0, bad at step 4" in printed
    assert "no longer exists" in printed
    assert "keep_every=1" in printed
