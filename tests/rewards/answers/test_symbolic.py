"""Formulas are compared in processes that can be killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mint.rewards import check_answer
from mint.rewards.answers.symbolic import FormulaPool, SymbolicUnavailable

TOWER = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def pool() -> FormulaPool:
    with closing(FormulaPool(size=2)) as pool:
        pool.start()
        yield pool


def test_equal_formulas_are_equal_in_any_thread(pool: FormulaPool) -> None:
    pairs = [("x^2+2x+1", "(x+1)^2"), ("x/2", r"\frac{x}{2}"), ("x", "y"), (r"2\pi", r"\pi 2")] * 5
    with ThreadPoolExecutor(8) as threads:
        same = list(threads.map(lambda pair: pool.same(*pair), pairs))
    assert same == [True, True, False, True] * 5


def test_a_bomb_is_not_equal_and_the_pool_lives_on(pool: FormulaPool) -> None:
    with ThreadPoolExecutor(4) as threads:
        same = list(threads.map(lambda gold: pool.same(gold, TOWER), ["x", "x^2", "y", "z"]))
    assert same == [False] * 4
    assert pool.same("x + 1", "1 + x")


@pytest.mark.parametrize(
    "answer", ["", "   ", "\\", "{" * 500, "x" * 100_000, "\x00", "$$$", TOWER]
)
def test_nonsense_is_not_equal(pool: FormulaPool, answer: str) -> None:
    assert pool.same("x^2", answer) is False


def test_check_answer_survives_bombs_from_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        scores = threads.map(
            lambda gold: check_answer(rf"\boxed{{{TOWER}}}", gold), ["a^2", "b^2", "c^2"]
        )
    assert list(scores) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (1, 0.0)])
def test_a_pool_that_cannot_work_is_refused(size: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="size >= 1 and seconds > 0"):
        FormulaPool(size, seconds)


def test_a_worker_that_cannot_start_is_reported_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    with closing(FormulaPool(size=1)) as pool:
        for _ in range(2):
            with pytest.raises(SymbolicUnavailable, match="exit code 1"):
                pool.same("x", "y")
