"""A fixed dataset is used whole: every item once before any twice, whatever the steps take."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.rl import RLConfig
from mint.rl.data.prompts import Data
from tests.rl.conftest import Letters
from tests.tiny import build_tokenizer

TOKENIZER = build_tokenizer()


class Rows(Letters):
    """A fixed dataset, perhaps in another order at every call, with some rows twice."""

    def __init__(self, count: int, reordered: bool = False, twice: int = 0) -> None:
        self.rows = [f"{i}:" for i in range(count)] + [f"{i}:" for i in range(twice)]
        self.reordered = reordered
        self.own = random.Random(3)

    def build_dataset(self) -> list[str]:
        return self.own.sample(self.rows, len(self.rows)) if self.reordered else list(self.rows)

    def identity(self, sample: str) -> str:
        return sample


Steps = list[tuple[list[int], bool]]
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.booleans()), min_size=1, max_size=12
)
"""For every step: how many items its refills ask for, and whether the run is interrupted after."""


def drawn(rows: Rows, cfg: RLConfig, steps: Steps, interrupted: bool) -> list[list[str]]:
    """What each step draws, where even items are always solved and odd ones sometimes."""
    data, found = Data(rows, TOKENIZER, cfg), []
    for step, (refills, ends) in enumerate(steps, start=1):
        draw = data.draw(step)
        items = draw.batch(cfg.batch_size)
        for count in refills:
            items += draw.more(count)
        found.append([item.sample for item in items])
        if data.curriculum is not None:
            for item in items:
                data.curriculum.record(item.identity, success_of(item.sample))
            data.curriculum.step = step
        if interrupted and ends:
            state = json.loads(json.dumps([data.calls, data.epochs and data.epochs.state()]))
            curriculum = data.curriculum.state() if data.curriculum else None
            rows = Rows(0)
            rows.rows, rows.reordered = data.adapter.rows, data.adapter.reordered
            data = Data(rows, TOKENIZER, cfg)
            if data.curriculum is not None and curriculum is not None:
                data.curriculum.load(curriculum)
            data.resume(*state)
    return found


def success_of(sample: str) -> float:
    return 1.0 if int(sample[:-1]) % 2 == 0 else 0.5


@given(STEPS, st.integers(1, 12), st.integers(1, 6), st.booleans(), st.integers(0, 3))
def test_every_item_comes_once_before_any_twice(
    steps: Steps, count: int, batch: int, reordered: bool, twice: int
) -> None:
    rows = Rows(count, reordered, min(twice, count))
    cfg = RLConfig(batch_size=batch)
    found = drawn(rows, cfg, steps, interrupted=False)
    wanted = Counter(rows.rows)
    times: Counter[str] = Counter()
    for sample in (sample for step in found for sample in step):
        times[sample] += 1
        passes = [times[row] / wanted[row] for row in wanted]
        assert max(passes) - min(passes) <= 1
    for step, (refills, _) in zip(found, steps, strict=True):
        assert len(step) == min(len(rows.rows), batch + sum(refills))
        assert not Counter(step) - wanted


@given(STEPS, st.integers(1, 12), st.integers(1, 6), st.booleans(), st.booleans())
def test_a_resumed_run_draws_what_an_uninterrupted_one_does(
    steps: Steps, count: int, batch: int, reordered: bool, curriculum: bool
) -> None:
    cfg = RLConfig(batch_size=batch, curriculum=curriculum)
    whole = drawn(Rows(count, reordered), cfg, steps, interrupted=False)
    assert drawn(Rows(count, reordered), cfg, steps, interrupted=True) == whole


@given(STEPS, st.integers(2, 12), st.integers(1, 6))
def test_with_a_curriculum_no_item_that_it_keeps_is_left_behind(
    steps: Steps, count: int, batch: int
) -> None:
    found = drawn(Rows(count), RLConfig(batch_size=batch, curriculum=True), steps, False)
    times = Counter(sample for step in found for sample in step)
    kept = [times[f"{i}:"] for i in range(1, count, 2)]  # the others are solved, and dropped
    assert max(kept) - min(kept) <= 1


def test_refills_see_no_prompt_twice_in_the_first_pass() -> None:
    data = Data(Rows(100), TOKENIZER, RLConfig(data_order="shuffled", batch_size=8))
    seen: list[str] = []
    for step in range(1, 7):
        draw = data.draw(step)
        seen += [item.sample for item in [*draw.batch(8), *draw.more(4), *draw.more(4)]]
    assert len(seen) == len(set(seen)) == 96


@pytest.mark.parametrize("seed", [0, 1])
def test_passes_are_shuffled_by_the_seed(seed: int) -> None:
    cfg = RLConfig(batch_size=20, seed=seed)
    first, second = drawn(Rows(20), cfg, [([], False)] * 2, False)
    other, _ = drawn(Rows(20), RLConfig(batch_size=20, seed=seed + 1), [([], False)] * 2, False)
    assert sorted(first) == sorted(second)
    assert len({tuple(first), tuple(second), tuple(other), tuple(Rows(20).rows)}) == 4


class Drawing(Letters):
    """Draws new samples at every call, from the shared random numbers and from its own."""

    def __init__(self) -> None:
        self.own = random.Random(5)
        self.calls = 0

    def build_dataset(self) -> list[str]:
        self.calls += 1
        return [f"{random.randint(0, 999)} {self.own.randint(0, 999)}:" for _ in range(9)]

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        random.random()  # as a prompt with random examples would
        return super().make_prompt(sample, tokenizer)


def test_an_adapter_that_draws_new_samples_is_used_as_mint_does() -> None:
    auto, first = Drawing(), Drawing()
    orders = {}
    for name, adapter in {"auto": auto, "first": first}.items():
        data = Data(adapter, TOKENIZER, RLConfig(data_order=name))
        orders[name] = [[item.sample for item in data.draw(s).batch(3)] for s in (1, 2, 3)]
    assert orders["auto"] == orders["first"]
    assert auto.calls == first.calls == 3


@pytest.mark.parametrize(
    ("adapter", "order", "told"),
    [
        (Rows(5), "auto", "over the whole dataset in epochs, shuffled: build_dataset returns"),
        (Rows(5, reordered=True), "auto", "over the whole dataset"),
        (Drawing(), "auto", "calls build_dataset and uses the first samples: build_dataset"),
        (Rows(5), "first", "calls build_dataset and uses the first samples."),
        (Drawing(), "shuffled", "over the whole dataset in epochs, shuffled."),
    ],
)
def test_a_run_says_which_order_it_uses(adapter: Any, order: str, told: str) -> None:
    data = Data(adapter, TOKENIZER, RLConfig(data_order=order))
    assert told in data.decide_order()
    assert (data.epochs is not None) == ("whole" in told)
