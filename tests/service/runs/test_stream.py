"""The order of operations: any arrival order, duplicates, gaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mint.service.runs.stream import Gradients, Operation, Stream
from mint.service.wire.bodies import negative_number

KINDS = st.sampled_from(["forward_backward", "forward", "optim_step", "save_weights"])


@given(st.lists(KINDS, min_size=1, max_size=12), st.data())
def test_every_number_runs_once_and_in_order(kinds: list[str], data: st.DataObject) -> None:
    numbers = list(range(1, len(kinds) + 1))
    arrivals = data.draw(st.permutations(numbers + data.draw(st.lists(st.sampled_from(numbers)))))
    stream, ran = Stream(), []
    for number in arrivals:
        stream.accept(Operation(number, kinds[number - 1], is_ready=True))
        if data.draw(st.booleans()):
            ran += [op.seq_id for op in stream.take()]
    while group := stream.take():
        ran += [op.seq_id for op in group]
        assert len(group) == 1 or {op.kind for op in group} == {"forward_backward"}
    assert ran == numbers
    assert stream.gap is None


@given(st.permutations([1, 2, 3, 4]))
def test_chunks_that_wait_for_the_first_run_together(order: list[int]) -> None:
    stream = Stream()
    for number in order:
        stream.accept(Operation(number, "forward_backward", is_ready=True))
    assert [op.seq_id for op in stream.take()] == [1, 2, 3, 4]


def test_the_first_of_two_requests_with_one_number_stays() -> None:
    stream = Stream()
    assert stream.accept(Operation(1, "save_weights", is_ready=True))
    assert not stream.accept(Operation(1, "optim_step", is_ready=True))
    assert [op.kind for op in stream.take()] == ["save_weights"]
    assert not stream.accept(Operation(1, "optim_step", is_ready=True))


def test_an_operation_waits_until_it_is_in_the_journal() -> None:
    stream = Stream()
    operation = Operation(1, "optim_step")
    stream.accept(operation)
    assert stream.take() == []
    assert stream.gap is None
    operation.is_ready = True
    assert stream.take() == [operation]


def test_a_gap_is_named_and_can_be_abandoned() -> None:
    stream = Stream()
    for number in (2, 4):
        stream.accept(Operation(number, "optim_step", is_ready=True))
    assert stream.gap == 1
    assert [op.seq_id for op in stream.drop_waiting()] == [2, 4]
    assert stream.next == 5


def test_a_huge_batch_is_not_sent_as_one_call() -> None:
    stream = Stream()
    for number in (1, 2, 3):
        size = 300 * 1024 * 1024
        stream.accept(Operation(number, "forward_backward", size, is_ready=True))
    assert [len(stream.take()) for _ in range(3)] == [1, 1, 1]


def test_a_step_needs_a_gradient_unless_none_was_asked_for() -> None:
    gradients = Gradients()
    assert gradients.why_not_step() is None
    gradients.note("forward_backward", 2, "NaN in advantages")
    assert "NaN in advantages" in (gradients.why_not_step() or "")
    gradients.note("optim_step", 1, "did nothing")
    assert gradients.why_not_step() is None


def test_a_step_uses_what_was_kept_beside_what_was_voided() -> None:
    gradients = Gradients()
    gradients.note("forward_backward", 1, "bad")
    gradients.note("forward", 1, "bad too")
    gradients.note("forward_backward", 3, None)
    assert gradients.why_not_step() is None
    gradients.note("optim_step", 1, "learning_rate is wrong")
    assert gradients.kept == 3
    gradients.note("optim_step", 1, None)
    assert gradients.kept == 0
    assert not gradients.voided


def test_an_operation_without_a_number_runs_between_those_before_and_those_after_it() -> None:
    stream = Stream()
    for number in (1, 2, 4):
        stream.accept(Operation(number, "forward_backward", is_ready=True))
    extra = Operation(negative_number("a"), "forward_backward_reverse_kl", is_ready=True)
    assert stream.accept(extra)
    assert not stream.accept(extra)
    stream.accept(Operation(3, "forward_backward", is_ready=True))
    assert [op.seq_id for op in stream.take()] == [1, 2]
    assert stream.take() == [extra]
    assert [op.seq_id for op in stream.take()] == [3, 4]
    assert stream.knows(extra.seq_id) is True


def test_an_operation_without_a_number_does_not_wait_for_a_gap() -> None:
    stream = Stream()
    stream.accept(Operation(2, "optim_step", is_ready=True))
    extra = Operation(negative_number("a"), "forward_backward_reverse_kl")
    stream.accept(extra)
    assert stream.take() == [], "it is not in the journal yet"
    extra.is_ready = True
    assert stream.take() == [extra]
    assert stream.gap == 1
