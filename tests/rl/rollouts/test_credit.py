"""Credit per turn and per token: returns, baselines and masks against independent float64 code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mint
from mint.rl import (
    Chat,
    Group,
    RLConfig,
    Rollout,
    Segment,
    assign_advantages,
    per_token,
    per_turn,
)
from mint.rl.datums.datum import build_datums, values
from mint.rl.rollouts.credit import keep_turn_rewards
from mint.rl.rollouts.rollout import Turn
from tests.rl.stepping import stepping

Settings = Callable[..., RLConfig]
KINDS = ["centre", "standardise", "leave_one_out", "dr_grpo", "batch", "global"]


def conversation(rewards: list[float], discount: float, penalty: float = 0.0) -> Rollout:
    """A rollout in one context: before each reply of 1 to 3 tokens, 2 tokens are given."""
    segment, turns = Segment(), []
    for t in range(len(rewards)):
        length = 1 + t % 3
        segment.extend(Segment.of([1, 2], [10 + t] * length, [-0.5] * length))
        turns.append(Turn(0, len(segment.tokens) - length, len(segment.tokens)))
    return Rollout(
        [segment],
        "",
        reward=sum(rewards),
        penalty=penalty,
        turns=turns,
        turn_rewards=list(rewards),
        discount=discount,
    )


def group(*rollouts: Rollout) -> Group:
    return Group("", "", "", list(rollouts))


def random_group(draw: np.random.Generator, discount: float) -> Group:
    lengths = draw.integers(1, 5, size=4)
    return group(
        *(
            conversation(list(draw.normal(size=n)), discount, penalty=float(draw.normal()))
            for n in lengths
        )
    )


def expected(groups: list[Group], kind: str) -> list[list[list[float]]]:
    """The advantage of every turn of every rollout, from the formulas."""
    tables: list[np.ndarray] = []
    for each in groups:
        returns = []
        for rollout in each.rollouts:
            assert rollout.turn_rewards is not None
            r = np.array(rollout.turn_rewards, dtype=np.float64)
            r[-1] += rollout.penalty
            steps = np.arange(len(r))
            returns.append(
                np.array([(rollout.discount ** (steps[t:] - t) * r[t:]).sum() for t in steps])
            )
        longest = max(len(rollout.turns) for other in groups for rollout in other.rollouts)
        tables.append(np.array([np.append(r, [r[-1]] * (longest - len(r))) for r in returns]))
    everything = np.concatenate(tables)
    centred = [table - table.mean(axis=0, keepdims=True) for table in tables]
    spread = np.concatenate(centred).std()
    match kind:
        case "standardise":
            centred = [
                c / (table.std(axis=0, keepdims=True) + 1e-6)
                for c, table in zip(centred, tables, strict=True)
            ]
        case "leave_one_out":
            centred = [
                table - (table.sum(axis=0, keepdims=True) - table) / (len(table) - 1)
                for table in tables
            ]
        case "batch":
            centred = [c / (spread + 1e-6) for c in centred]
        case "global":
            centred = [(table - everything.mean()) / (everything.std() + 1e-6) for table in tables]
    return [
        [list(row[: len(r.turns)]) for row, r in zip(c, each.rollouts, strict=True)]
        for c, each in zip(centred, groups, strict=True)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_has_the_advantage_of_its_turn_and_no_other_has_any(
    kind: str, discount: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    groups = [random_group(draw, discount) for _ in range(3)]
    assign_advantages(groups, kind)
    wanted = expected(groups, kind)
    datums = iter(build_datums(groups))
    for each, rows in zip(groups, wanted, strict=True):
        for rollout, turn_advantages in zip(each.rollouts, rows, strict=True):
            datum = next(datums)
            found = values(datum, "advantages")
            assert len(found) == len(rollout.segments[0].tokens) - 1
            assert list(values(datum, "weights")) == rollout.segments[0].sampled[1:]
            by_token = np.zeros(len(rollout.segments[0].tokens))
            for turn, advantage in zip(rollout.turns, turn_advantages, strict=False):
                by_token[turn.begin : turn.end] = advantage
            np.testing.assert_allclose(found, by_token[1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_reward_at_the_end_is_the_special_case(kind: str) -> None:
    """Whatever the numbers of turns: groups of long conversations weigh no more than others."""
    outcomes = [[(1.0, 3), (0.0, 1), (0.5, 2), (1.0, 4)], [(1.0, 1), (0.0, 1)], [(1.0, 9)] * 2]
    late = [
        group(*(conversation([0.0] * (n - 1) + [r], 1.0) for r, n in of_group))
        for of_group in outcomes
    ]
    whole = [
        group(*(conversation([0.0] * (n - 1) + [r], 1.0) for r, n in of_group))
        for of_group in outcomes
    ]
    for rollout in (rollout for each in whole for rollout in each.rollouts):
        rollout.turn_rewards = None
    assign_advantages(late, kind)
    assign_advantages(whole, kind)
    assert all(rollout.turn_advantages is None for each in whole for rollout in each.rollouts)
    for one, other in zip(build_datums(late), build_datums(whole), strict=True):
        np.testing.assert_allclose(
            values(one, "advantages"), values(other, "advantages"), rtol=1e-6
        )


def test_rollouts_of_one_total_have_a_signal_when_their_turns_differ() -> None:
    each = group(conversation([1.0, 0.0], 1.0), conversation([0.0, 1.0], 1.0))
    assert each.kind(1.0) == "signal"
    assign_advantages([each])
    assert [r.turn_advantages for r in each.rollouts] == [[0.0, -0.5], [0.0, 0.5]]
    assert len(build_datums([each])) == 2
    alike = group(conversation([1.0, 0.0], 1.0), conversation([1.0, 0.0], 1.0))
    assert alike.kind(1.0) == "all_right"


def test_a_reward_for_the_whole_counts_for_every_turn_beside_rewards_per_turn() -> None:
    plain = conversation([0.0, 0.0, 0.0], 1.0)
    plain.turn_rewards, plain.reward = None, 1.0
    other = conversation([0.0, 0.5], 0.5)
    assign_advantages([group(plain, other)])
    assert plain.turn_advantages == [(1.0 - 0.25) / 2, 0.25, 0.25]
    assert other.turn_advantages == [-(1.0 - 0.25) / 2, -0.25]


def paid_by_token(draw: np.random.Generator, discount: float) -> tuple[Rollout, list[list[float]]]:
    rollout = conversation([0.0] * int(draw.integers(1, 4)), discount, float(draw.normal()))
    rewards = [list(draw.normal(size=turn.end - turn.begin)) for turn in rollout.turns]
    rollout.turn_rewards, rollout.reward = None, sum(map(sum, rewards))
    rollout.trace = [{"role": "assistant", "content": ""} for _ in rewards]
    keep_turn_rewards(rollout, per_token(rewards), discount, weighed=False)
    return rollout, rewards


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("kind", ["centre", "standardise", "leave_one_out"])
def test_every_token_has_the_advantage_of_its_own_return(kind: str, discount: float) -> None:
    draw = np.random.default_rng(7)
    made = [paid_by_token(draw, discount) for _ in range(5)]
    each = group(*(rollout for rollout, _ in made))
    assign_advantages([each], kind)
    returns = []
    for rollout, rewards in made:
        r = np.concatenate([np.asarray(reply, dtype=np.float64) for reply in rewards])
        r[-1] += rollout.penalty
        powers = [discount ** np.arange(len(r) - t) for t in range(len(r))]
        returns.append(np.array([(p * r[t:]).sum() for t, p in enumerate(powers)]))
    longest = max(map(len, returns))
    table = np.array([np.append(r, [r[-1]] * (longest - len(r))) for r in returns])
    wanted = table - table.mean(axis=0)
    if kind == "standardise":
        wanted = wanted / (table.std(axis=0) + 1e-6)
    if kind == "leave_one_out":
        wanted = wanted * len(table) / (len(table) - 1)
    for (rollout, _), row, datum in zip(made, wanted, build_datums([each]), strict=True):
        sampled = np.asarray(rollout.segments[0].sampled[1:])
        found = values(datum, "advantages")
        np.testing.assert_allclose(found[sampled], row[: sampled.sum()], rtol=1e-5, atol=1e-6)
        assert not found[~sampled].any()
        assert sum(m["reward"] for m in rollout.trace) == pytest.approx(rollout.reward)


class Steps:
    """Pays each reply for its bytes below 128, in two contexts."""

    def __init__(self, paid: int = 3) -> None:
        self.paid = paid

    def build_dataset(self) -> list[dict[str, int]]:
        return [{"number": i} for i in range(4)]

    async def rollout(self, task: dict[str, int], chat: Chat) -> Any:
        rewards = []
        for turn in range(3):
            if turn == 2:
                chat.restart([{"role": "user", "content": "afresh"}])
            else:
                chat.user(f"say {task['number']}")
            text = (await chat.reply()).text
            rewards.append(sum(c < "\x80" for c in text) / max(1, len(text)))
        return per_turn(rewards[: self.paid])


def test_an_environment_with_rewards_per_turn_trains_on_them(
    client: mint.ServiceClient, settings: Settings
) -> None:
    cfg = settings(discount=0.5, advantage="centre")
    with stepping(Steps(), cfg, client) as run:
        batch = run.sample(1)
        datums = run.build_datums(batch)
        run.record(batch, run.train(batch, datums))
    counted = [r for g in run.useful(batch) for r in g.counted]
    assert counted
    assert len(datums) == 2 * len(counted)
    pairs = zip(datums[::2], datums[1::2], strict=True)
    for rollout, (first, second) in zip(counted, pairs, strict=True):
        assert rollout.turn_advantages is not None
        a, b, c = rollout.turn_advantages
        inside = values(first, "weights") != 0
        one, other = rollout.turns[0], rollout.turns[1]
        wanted = [a] * (one.end - one.begin) + [b] * (other.end - other.begin)
        np.testing.assert_allclose(values(first, "advantages")[inside], wanted, rtol=1e-5)
        assert not values(first, "advantages")[~inside].any()
        inside = values(second, "weights") != 0
        np.testing.assert_allclose(values(second, "advantages")[inside], c, rtol=1e-5)
        said = [m["reward"] for m in rollout.messages if m["role"] == "assistant"]
        assert said == rollout.turn_rewards


class ByToken(Steps):
    """Pays every token for being below 128, in two contexts; ``short`` forgets one."""

    def __init__(self, short: bool = False) -> None:
        self.short = short

    async def rollout(self, task: dict[str, int], chat: Chat) -> Any:
        rewards = []
        for text in ("one", "two"):
            chat.restart([{"role": "user", "content": f"{text} {task['number']}"}])
            tokens = (await chat.reply()).tokens
            rewards.append([float(token < 128) for token in tokens[self.short :]])
        return per_token(rewards)


def test_an_environment_with_rewards_per_token_trains_on_them(
    client: mint.ServiceClient, settings: Settings
) -> None:
    with stepping(ByToken(), settings(discount=0.0, advantage="centre"), client) as run:
        batch = run.sample(1)
        datums = run.build_datums(batch)
        run.record(batch, run.train(batch, datums))
    groups = [g for g in run.useful(batch) if g.counted]
    assert groups
    for each in groups:
        for t in range(min(len(r.turns) for r in each.counted)):  # without a discount: r - mean
            paid = [r.turn_rewards[t] for r in each.counted if r.turn_rewards]
            found = [r.turn_advantages[t] for r in each.counted if r.turn_advantages]
            np.testing.assert_allclose(found, np.asarray(paid) - np.mean(paid), atol=1e-9)


def test_rewards_that_do_not_fit_the_tokens_are_a_clear_error(
    client: mint.ServiceClient, settings: Settings
) -> None:
    with stepping(ByToken(short=True), settings(max_reward_failures=1.0), client) as run:
        batch = run.sample(1)
    said = "Pass one for each of reply.tokens."
    assert all(said in str(r.error) for g in batch.groups for r in g.rollouts)


@pytest.mark.parametrize(
    ("paid", "more", "said"),
    [
        (2, {}, "per_turn got 2 rewards, but the model has replied 3 times"),
        (3, {"reward_weights": {"outcome": 1.0}}, "Leave out reward_weights"),
    ],
)
def test_rewards_that_do_not_fit_the_turns_are_a_clear_error(
    client: mint.ServiceClient, settings: Settings, paid: int, more: dict[str, Any], said: str
) -> None:
    cfg = settings(max_reward_failures=1.0, **more)
    with stepping(Steps(paid), cfg, client) as run:
        batch = run.sample(1)
    assert all(said in str(r.error) for g in batch.groups for r in g.rollouts)


def test_the_reward_of_a_turn_must_be_finite() -> None:
    with pytest.raises(ValueError, match="must be a finite number, not nan"):
        per_turn([0.0, float("nan")])
