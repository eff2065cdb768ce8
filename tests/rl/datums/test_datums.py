"""Datums: which tokens are trained on, and how much each weighs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint import types
from mint.rl.algorithms.sequences import token_weights
from mint.rl.datums.datum import build_datums, make_datum, replaced, split, values, with_weights
from mint.rl.datums.masking import unmasked
from mint.rl.rollouts.rollout import Group, MissingLogprobs, Rollout, Segment


def group(*rollouts: Rollout) -> Group:
    return Group("sample", "identity", "prompt", list(rollouts))


def answered(tokens: list[int], advantage: float) -> Rollout:
    segment = Segment.of([1, 2], tokens, [-0.5] * len(tokens))
    return Rollout([segment], "text", reward=1.0, advantage=advantage)


def test_only_sampled_tokens_carry_weight_logprob_and_advantage() -> None:
    datum = make_datum(Segment.of([1, 2, 3], [4, 5], [-0.5, -0.25]), advantage=2.0)
    assert datum.model_input.to_ints() == [1, 2, 3, 4]
    assert list(values(datum, "target_tokens")) == [2, 3, 4, 5]
    assert list(values(datum, "weights")) == [0, 0, 1, 1]
    assert list(values(datum, "logprobs")) == [0, 0, -0.5, -0.25]
    assert list(values(datum, "advantages")) == [0, 0, 2, 2]


def test_a_conversation_masks_other_messages_and_ends_with_the_last_reply() -> None:
    segment = Segment.of([1, 2], [3, 4], [-0.1, -0.2])
    segment.extend(Segment.of([5, 6], [7], [-0.3]))
    segment.extend(Segment.of([8, 9], [], []))
    datum = make_datum(segment, advantage=1.0)
    assert datum.model_input.to_ints() == [1, 2, 3, 4, 5, 6]
    assert list(values(datum, "target_tokens")) == [2, 3, 4, 5, 6, 7]
    assert list(values(datum, "weights")) == [0, 1, 1, 0, 0, 1]
    assert values(datum, "logprobs") == pytest.approx([0, -0.1, -0.2, 0, 0, -0.3])


@pytest.mark.parametrize("logprobs", [None, [], [-0.5]])
def test_missing_logprobs_are_an_error_never_zeros(logprobs: list[float] | None) -> None:
    with pytest.raises(MissingLogprobs, match="importance ratio needs them"):
        Segment.of([], [1, 2], logprobs)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("sum", [1.0, 1.0]),
        ("token", [1 / 6, 1 / 6]),
        ("sequence", [1 / 4, 1 / 8]),
        ("constant", [1 / 20, 1 / 20]),
    ],
)
def test_each_aggregation_gives_its_weights(aggregation: str, expected: list[float]) -> None:
    assert token_weights([2, 4], aggregation, max_tokens=10) == pytest.approx(expected)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_token_and_sequence_weights_sum_to_one(lengths: list[int]) -> None:
    for aggregation in ("token", "sequence"):
        weights = token_weights(lengths, aggregation, max_tokens=50)
        total = sum(weight * length for weight, length in zip(weights, lengths, strict=True))
        assert total == pytest.approx(1.0)


def test_rollouts_without_advantage_reward_or_tokens_are_no_datums() -> None:
    failed = answered([3], 1.0)
    failed.reward = None
    masked = answered([3], 1.0)
    masked.masked = True
    groups = [group(answered([3], 0.5), answered([4], 0.0), answered([], 1.0), failed, masked)]
    assert len(build_datums(groups)) == 1


def test_an_answer_as_good_as_the_mean_is_an_answer_of_the_batch() -> None:
    groups = [group(answered([3, 4], 0.5), answered([5] * 6, 0.0), answered([6], -0.5))]
    cut = answered([7, 8], 1.0)
    cut.masked = True
    groups.append(group(cut, answered([9], 0.25)))
    wanted = {
        "sum": [1.0, 1.0, 1.0],
        "token": [1 / 10, 1 / 10, 1 / 10],
        "sequence": [1 / 8, 1 / 4, 1 / 4],
        "constant": [1 / 32, 1 / 32, 1 / 32],
    }
    for aggregation, weights in wanted.items():
        found = build_datums(groups, aggregation, max_tokens=8)
        assert [values(datum, "weights")[-1] for datum in found] == pytest.approx(weights)


def test_a_rollout_of_two_contexts_is_two_datums_of_one_advantage() -> None:
    rollout = answered([3], 0.5)
    rollout.segments.append(Segment.of([9, 9], [8], [-1.0]))
    datums = build_datums([group(rollout)])
    assert [datum.model_input.to_ints() for datum in datums] == [[1, 2], [9, 9]]
    assert [values(datum, "advantages")[-1] for datum in datums] == [0.5, 0.5]


def test_gspo_takes_its_ratio_over_sampled_tokens() -> None:
    datum = build_datums([group(answered([3, 4], 0.5))], loss_fn="gspo")[0]
    assert list(values(datum, "sequence_ratio_mask")) == [0, 1, 1]


@given(st.integers(0, 30), st.integers(1, 8))
def test_mini_batches_keep_every_datum_in_order_and_are_never_empty(count: int, parts: int) -> None:
    datums = [make_datum(Segment.of([1], [i], [-1.0]), 1.0) for i in range(count)]
    found = split(datums, parts)
    assert [d for part in found for d in part] == datums
    if count:
        assert all(found)
        assert len(found) == min(parts, count)
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_weight_on_a_prompt_token_is_found() -> None:
    groups = [group(answered([3, 4], 0.5), answered([5], -0.5))]
    datums = build_datums(groups)
    assert unmasked(datums, groups) == []
    wrong = replaced(datums[1], weights=np.ones(2))
    assert unmasked([datums[0], wrong], groups) == [1]


def test_weight_on_a_prompt_token_is_found_in_an_answer_that_was_changed() -> None:
    groups = [group(answered([3, 4], 0.5), answered([5], -0.5))]
    longer = make_datum(Segment.of([1, 2], [3, 4, 9], [-0.5] * 3), advantage=0.5)
    shorter = make_datum(Segment.of([1, 2], [3], [-0.5]), advantage=0.5)
    assert unmasked([longer, shorter], groups) == []
    wrong = [replaced(d, weights=np.ones(len(values(d, "weights")))) for d in (longer, shorter)]
    assert unmasked(wrong, groups) == [0, 1]


def test_weight_on_a_prompt_token_is_found_when_another_token_was_changed() -> None:
    prompt = [1, 2, 3, 4]
    sampled = Segment.of(prompt, [5, 6, 7], [-0.5] * 3)
    groups = [group(Rollout([sampled], "text", reward=1.0, advantage=1.0))]
    (datum,) = build_datums(groups)
    for place in (0, 1, 5):
        tokens = [9 if i == place else token for i, token in enumerate([*prompt, 5, 6, 7])]
        changed = make_datum(Segment.of(tokens[:4], tokens[4:], [-0.5] * 3), advantage=1.0)
        assert unmasked([changed], groups) == []
        wrong = replaced(changed, weights=np.ones(6))
        assert unmasked([datum, wrong], groups) == [1]


@pytest.mark.parametrize(
    "edit",
    [
        lambda tokens: [90, *tokens[1:-1], 91],
        lambda tokens: [90, *tokens, 91],
        lambda tokens: [*tokens[1:4], 90, *tokens[4:-1]],
        lambda tokens: [token if i % 4 else 90 for i, token in enumerate(tokens)],
    ],
    ids=["first and last changed", "lengthened", "shortened, and one put between", "every fourth"],
)
def test_an_edited_datum_is_found_whichever_of_its_tokens_were_changed(
    edit: Callable[[list[int]], list[int]],
) -> None:
    prompts = [[*range(10, 20)], [*range(10, 16), 30, 31, 32, 33]]
    answers = [Segment.of(p, [50, 51, 52, 53 + i], [-0.5] * 4) for i, p in enumerate(prompts)]
    groups = [group(Rollout([s], "text", reward=1.0, advantage=1.0)) for s in answers]
    for answer in answers:
        tokens = edit(answer.tokens)
        sampled = tokens.index(51) if 51 in tokens else tokens.index(52)
        masked = make_datum(
            Segment.of(tokens[:sampled], tokens[sampled:], [-0.5] * len(tokens[sampled:])), 1.0
        )
        assert unmasked([masked], groups) == []
        wrong = replaced(masked, weights=np.ones(len(tokens) - 1))
        assert unmasked([masked, wrong], groups) == [1]


def test_an_answer_that_quotes_its_prompt_is_not_reported_when_both_were_edited() -> None:
    quoted = [*range(10, 30)]
    answer = Segment.of([1, 2, *quoted, 3], [4, *quoted, 5], [-0.5] * 22)
    groups = [group(Rollout([answer], "text", reward=1.0, advantage=1.0))]
    edited = make_datum(Segment.of([90, 91], [93, *quoted, 92], [-0.5] * 22), advantage=1.0)
    assert unmasked([edited], groups) == []
    wrong = make_datum(Segment.of([90, 2], [*quoted, 3, 4, *quoted, 92], [-0.5] * 43), 1.0)
    assert unmasked([wrong], groups) == [0]


def test_an_edited_turn_is_not_taken_for_a_context_that_quotes_it() -> None:
    """The second context has every pair of tokens that the edited datum has."""
    first = Segment.of([1, 2], [3, 4, 5], [-0.5] * 3)
    later = Segment.of([1, 2, 3, 4, 5, 6, 7], [8], [-0.5])
    groups = [group(Rollout([later, first], "text", reward=1.0, advantage=1.0))]
    shorter = make_datum(Segment.of([1, 2], [3, 4], [-0.5] * 2), advantage=1.0)
    assert unmasked([shorter], groups) == []


def test_a_datum_without_weights_has_those_that_the_service_takes() -> None:
    groups = [group(answered([3, 4], 0.5))]
    (datum,) = build_datums(groups)
    inputs = {name: x for name, x in datum.loss_fn_inputs.items() if name != "weights"}
    bare = types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)
    found = with_weights(bare)
    assert list(values(found, "weights")) == [0.0, 1.0, 1.0]
    assert unmasked([found], groups) == []
    everywhere = with_weights(replaced(bare, advantages=np.ones(3)))
    assert unmasked([everywhere], groups) == [0]


def test_an_answer_that_begins_another_prompt_is_not_reported() -> None:
    longer = Rollout([Segment.of([1, 2, 3], [5], [-0.5])], "text", reward=1.0, advantage=1.0)
    groups = [group(answered([3, 4], 0.5), answered([3, 6], -0.5)), group(longer)]
    assert unmasked(build_datums(groups), groups) == []


def test_a_reply_that_another_context_quotes_is_not_reported() -> None:
    whole = Segment.of([1, 2], [3], [-0.5])
    whole.extend(Segment.of([4], [5], [-0.5]))
    quoted = Segment.of([1, 2, 3, 4], [5], [-0.5])
    rollout = Rollout([whole, quoted], "text", reward=1.0, advantage=1.0)
    assert unmasked(build_datums([group(rollout)]), [group(rollout)]) == []
