"""The time of samples and of training, on a clock that the test turns."""

from __future__ import annotations

from mint.engine.training.time_share import TimeShare


class Process:
    """Has samples and passes to run without end; each turn takes a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.share = TimeShare(lambda: self.now)

    def samples(self) -> int:
        """Let samples run for as long as it is their turn."""
        turns = 0
        while self.share.is_for_samples:
            self.now += 1
            turns += 1
            self.share.sampled()
        return turns

    def run_pass(self, pauses: int) -> list[int]:
        """Run a pass; return how long samples ran in each of its pauses."""
        self.share.begin_pass()
        found = []
        for _ in range(pauses):
            self.now += 1
            self.share.trained()
            found.append(self.samples())
        self.share.end_pass()
        return found


def test_samples_run_before_the_first_pass_and_then_take_turns_with_its_parts() -> None:
    process = Process()
    assert process.samples() == 1
    assert process.run_pass(pauses=20) == [1] * 20


def test_after_the_time_of_a_pass_both_get_the_same() -> None:
    process = Process()
    process.run_pass(pauses=10)
    process.now += 100  # nothing has work
    process.share.trained()
    assert process.samples() == 11, "the time of a pass, and a turn that begins within it"
    assert process.run_pass(pauses=10) == [1] * 10
    assert process.samples() == 0
    assert process.run_pass(pauses=10) == [1] * 10


def test_samples_that_come_and_go_do_not_take_the_time_of_training() -> None:
    process = Process()
    process.run_pass(pauses=4)
    ran = 0
    for _ in range(50):
        process.share.begin_pass()
        for _ in range(4):
            process.now += 1
            process.share.trained()
            if process.share.is_for_samples:  # one short sample at a time
                process.now += 3
                process.share.sampled()
                ran += 3
        process.share.end_pass()
    assert ran <= 4 * 50 + 2 * 4, "more than training had"


def test_a_sample_that_arrives_in_a_pass_runs_at_its_next_pause() -> None:
    process = Process()
    process.share.begin_pass()
    for _ in range(6):
        process.now += 1
        process.share.trained()
    assert process.samples() == 1
