"""Which prompts a step gets: order, split, curriculum."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.rl import ConfigError, Curriculum, RLConfig, Split
from mint.rl.data.prompts import Data, NotEnoughData
from mint.rl.rollouts.rollout import Group, Rollout
from mint.rl.task import identify
from tests.rl.conftest import Letters
from tests.tiny import build_tokenizer

TOKENIZER = build_tokenizer()


class Numbers(Letters):
    """A fixed dataset, or one drawn from the adapter's own random numbers."""

    def __init__(self, fixed: int = 0, holdout: list[str] | None = None) -> None:
        self.fixed = fixed
        self.held = holdout or []
        self.own = random.Random(7)

    def build_dataset(self) -> list[str]:
        if self.fixed:
            return [f"{i}:" for i in range(self.fixed)]
        return [f"{self.own.random()} {random.random()}" for _ in range(6)]

    def build_holdout(self) -> list[str]:
        return self.held


def batches(data: Data, steps: int, count: int = 3) -> list[list[str]]:
    return [[i.sample for i in data.draw(s).batch(count)] for s in range(1, steps + 1)]


def test_a_step_uses_the_first_of_a_larger_dataset_and_all_of_a_smaller() -> None:
    data = Data(Numbers(fixed=5), TOKENIZER, RLConfig(data_order="first"))
    assert batches(data, 2) == [["0:", "1:", "2:"], ["0:", "1:", "2:"]]
    assert batches(data, 1, count=9) == [["0:", "1:", "2:", "3:", "4:"]]


def test_shuffled_order_shows_every_item_once_before_any_twice() -> None:
    data = Data(Numbers(fixed=6), TOKENIZER, RLConfig(data_order="shuffled", batch_size=3))
    found = batches(data, 4)
    assert sorted(found[0] + found[1]) == sorted(found[2] + found[3]) == [f"{i}:" for i in range(6)]
    assert found[0] + found[1] != found[2] + found[3]


def test_data_is_the_same_after_a_replay_whoever_owns_the_random_numbers() -> None:
    whole = batches(Data(Numbers(), TOKENIZER, RLConfig()), 4)
    first = Data(Numbers(), TOKENIZER, RLConfig())
    batches(first, 2)
    random.seed()
    continued = Data(Numbers(), TOKENIZER, RLConfig())
    continued.resume(first.calls)
    assert [[i.sample for i in continued.draw(s).batch(3)] for s in (3, 4)] == whole[2:]


@given(st.lists(st.text(max_size=5), max_size=50), st.floats(0, 0.9), st.randoms())
def test_no_order_of_events_puts_an_identity_on_both_sides(
    identities: list[str], fraction: float, order: random.Random
) -> None:
    first = {name: Split(fraction).holds_out(name) for name in identities}
    order.shuffle(identities)
    assert all(Split(fraction).holds_out(name) == first[name] for name in identities)


def test_the_split_holds_out_the_share_that_was_asked_for() -> None:
    held = sum(Split(0.2).holds_out(str(i)) for i in range(5000))
    assert 900 < held < 1100


def test_what_is_held_out_is_never_drawn() -> None:
    data = Data(Letters(), TOKENIZER, RLConfig(holdout_fraction=0.5, holdout_size=20))
    held = {item.identity for item in data.holdout()}
    draws = [data.draw(step) for step in range(1, 30)]
    drawn = {i.identity for draw in draws for i in [*draw.batch(8), *draw.more(8)]}
    assert len(held) == 20
    assert not held & drawn


def test_a_holdout_is_as_large_as_asked_for_however_few_samples_a_call_gives() -> None:
    data = Data(Numbers(), TOKENIZER, RLConfig(holdout_fraction=0.2, holdout_size=100))
    assert len({item.identity for item in data.holdout()}) == 100
    fixed = Data(Numbers(fixed=40), TOKENIZER, RLConfig(holdout_fraction=0.2, holdout_size=100))
    held = [f"{i}:" for i in range(40) if fixed.split.holds_out(fixed.item(f"{i}:").identity)]
    assert [item.sample for item in fixed.holdout()] == held


def test_the_adapters_own_holdout_is_taken_out_of_its_dataset() -> None:
    data = Data(Numbers(fixed=6, holdout=["1:", "4:"]), TOKENIZER, RLConfig())
    assert [item.sample for item in data.holdout()] == ["1:", "4:"]
    assert sorted(batches(data, 1, count=6)[0]) == ["0:", "2:", "3:", "5:"]


def test_nothing_but_the_adapters_own_holdout_is_kept_from_training() -> None:
    data = Data(Numbers(fixed=40, holdout=["1:"]), TOKENIZER, RLConfig(holdout_fraction=0.5))
    assert len(batches(data, 1, count=40)[0]) == 39


def test_problems_that_are_the_same_by_identity_fall_on_one_side() -> None:
    class Sums(Letters):
        def build_dataset(self) -> list[Any]:
            return [(a, b) for a in range(5) for b in range(5)]

        def make_prompt(self, sample: Any, tokenizer: Any) -> list[int]:
            return super().make_prompt(f"{sample[0]}+{sample[1]}", tokenizer)

        def identity(self, sample: Any) -> str:
            return str(sorted(sample))

    data = Data(Sums(), TOKENIZER, RLConfig(holdout_fraction=0.4))
    held = {tuple(sorted(item.sample)) for item in data.holdout()}
    trained = {tuple(sorted(sample)) for sample in batches(data, 1, count=25)[0]}
    assert held
    assert not held & trained


def test_evaluation_without_a_holdout_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="holdout_fraction"):
        Data(Letters(), TOKENIZER, RLConfig(eval_every=1)).holdout()


def test_prompts_that_change_from_call_to_call_cannot_be_held_out_without_an_identity() -> None:
    class Shuffled(Numbers):
        def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
            return super().make_prompt(f"{self.own.random()} {sample}", tokenizer)

    class Named(Shuffled):
        def identity(self, sample: str) -> str:
            return sample

    assert Data(Shuffled(fixed=4), TOKENIZER, RLConfig()).draw(1).batch(2)
    with pytest.raises(ConfigError, match="identity"):
        Data(Shuffled(fixed=4), TOKENIZER, RLConfig(holdout_fraction=0.5)).holdout()
    assert Data(Named(fixed=40), TOKENIZER, RLConfig(holdout_fraction=0.5)).holdout()


def test_an_empty_dataset_says_so() -> None:
    class Nothing(Letters):
        def build_dataset(self) -> list[str]:
            return []

    with pytest.raises(NotEnoughData, match="build_dataset"):
        Data(Nothing(), TOKENIZER, RLConfig()).draw(1).batch(3)


def test_refills_are_other_prompts_than_those_before() -> None:
    draw = Data(Numbers(fixed=6), TOKENIZER, RLConfig()).draw(1)
    first = [item.sample for item in draw.batch(3)]
    more = [item.sample for item in draw.more(5)]
    assert not set(first) & set(more)
    assert len(more) == 3


def test_a_dataset_that_is_used_up_is_not_built_again_and_again() -> None:
    draw = Data(Numbers(fixed=6), TOKENIZER, RLConfig()).draw(1)
    draw.batch(3)
    assert len(draw.more(5)) == 3
    assert draw.data.calls <= 4


def test_the_curriculum_drops_the_ends_and_prefers_the_middle() -> None:
    curriculum = Curriculum()
    for _ in range(6):
        for name, success in {"easy": 1.0, "hard": 0.0, "middle": 0.5, "nearly": 0.9}.items():
            curriculum.record(name, success)
    assert [curriculum.pool(n) for n in ("easy", "hard", "middle", "never seen")] == [
        *("saturated", "hopeless", "learning", "new")
    ]
    assert curriculum.pools() == {"learning": 2, "saturated": 1, "hopeless": 1}
    names = ["easy", "hard", "middle", "nearly"]
    firsts = [names[curriculum.choose(names, 1, seed)[0]] for seed in range(300)]
    assert set(firsts) == {"middle", "nearly"}
    assert firsts.count("middle") > firsts.count("nearly")
    assert sorted(curriculum.choose(names, 4, 0)) == [0, 1, 2, 3]


def test_a_prompt_that_is_forgotten_comes_back_from_the_saturated() -> None:
    curriculum = Curriculum()
    for success in (1.0, 1.0, 1.0):
        curriculum.record("a", success)
    assert curriculum.pool("a") == "saturated"
    curriculum.record("a", 0.0)
    assert curriculum.pool("a") == "learning"


def lesson(identity: str, *rewards: float) -> Group:
    return Group(identity, identity, identity, [Rollout([], "", reward=r) for r in rewards])


def test_a_curriculum_resumes_from_its_state_and_from_that_of_the_step_before() -> None:
    first, second = Curriculum(), Curriculum()
    first.learn_from([lesson("a", 1.0, 0.0), lesson("b", 1.0)], threshold=1.0, step=1)
    before = first.as_of(1)
    first.learn_from([lesson("a", 0.0), lesson("c", 1.0), lesson("c", 0.0)], 1.0, step=2)
    second.load(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert second.as_of(2).known == first.known
    weights = [[known.weight(name) for name in "abc"] for known in (before, second.as_of(1))]
    assert weights[0] == weights[1]
    assert weights[0] != [first.weight(name) for name in "abc"]


def test_a_batch_drawn_ahead_does_not_depend_on_when_results_arrive() -> None:
    cfg = RLConfig(curriculum=True, max_staleness=1)
    lessons = [lesson(f"{i}:", float(i % 3 == 0), float(i % 2)) for i in range(30)]

    def drawn(learn_first: bool) -> list[str]:
        data = Data(Numbers(fixed=30), TOKENIZER, cfg)
        assert data.curriculum is not None
        known = [replace(g, identity=data.item(g.sample).identity) for g in lessons]
        data.curriculum.learn_from(known[:10], 1.0, step=1)
        data.resume(2)
        if learn_first:
            data.curriculum.learn_from(known, 1.0, step=2)
        draw = data.draw(3)
        first = draw.batch(4)
        if not learn_first:
            data.curriculum.learn_from(known, 1.0, step=2)
        return [item.sample for item in [*first, *draw.more(26), *draw.more(3)]]

    assert drawn(learn_first=False) == drawn(learn_first=True)


@pytest.mark.parametrize("task", [object(), [object()], lambda: 0, {1: "a", "b": 2}, {(1, 2): "a"}])
def test_a_task_without_a_stable_text_is_refused(task: Any) -> None:
    with pytest.raises(TypeError, match="identity"):
        identify(object(), task, None)


def test_a_task_whose_text_looks_like_an_object_address_is_accepted() -> None:
    assert identify(object(), "What prints <Foo object at 0x7f>?", None)


@dataclass(frozen=True)
class Riddle:
    """A task with parts that have no order."""

    facts: dict[str, int]
    tags: frozenset[str] = frozenset()


def test_the_order_of_a_dict_or_set_makes_no_other_problem() -> None:
    first = Riddle({"a": 1, "b": 2}, frozenset(["x", "yy", "zzz"]))
    second = Riddle({"b": 2, "a": 1}, frozenset(["zzz", "yy", "x"]))
    tasks: list[tuple[Any, Any]] = [
        (first, second),
        ([first], [second]),
        ({"a": {"x", "y"}, "b": first}, {"b": second, "a": {"y", "x"}}),
    ]
    for one, other in tasks:
        assert identify(object(), one, None) == identify(object(), other, None)
    assert identify(object(), first, None) != identify(object(), Riddle({"a": 1}), None)


def test_an_identity_is_the_same_in_every_process() -> None:
    code = (
        "from mint.rl.task import identify\n"
        "print(identify(object(), {'tags': set('abcdefgh')}, None))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(names) == 1
