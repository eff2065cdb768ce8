"""Ctrl-C at any moment: one line, the exit code 130, and a run that resumes without a trace."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mint
from mint.rl import Interrupted, RLConfig, run_grpo
from mint.rl.runtime import interruption
from mint.watch.directory.files import ROLLOUTS
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import EVENTS, read_rows
from tests.rl.conftest import Letters
from tests.rl.loop.test_resume import comparable
from tests.service_fixture import LiveService

Settings = Callable[..., RLConfig]
SHORT = {
    "steps": 3,
    "checkpoint_every": 2,
    "holdout_fraction": 0.3,
    "holdout_size": 2,
    "eval_every": 2,
    "service_timeout": 30.0,
}


class Finger(Letters):
    """Presses Ctrl-C when the main thread calls a function after the first step.

    A number stands for that many calls, of whatever function.
    """

    def __init__(self, where: str | int, times: int = 1) -> None:
        self.where, self.times, self.ready, self.calls = where, times, False, 0

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.ready = True

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self.ready:
            return
        self.calls += 1
        if self.where in (self.calls, frame.f_code.co_qualname):
            while self.times:
                self.times -= 1
                signal.raise_signal(signal.SIGINT)

    @contextmanager
    def watching(self) -> Iterator[None]:
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)


@pytest.fixture(scope="module")
def whole(live_service: LiveService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an uninterrupted run."""
    return tmp_path_factory.mktemp("whole")


def answers(folder: Path) -> list[tuple[Any, ...]]:
    rows = open_run(folder).rollouts()
    return [(row["step"], row["group"], row["prompt"], row["response"]) for row in rows]


@pytest.mark.parametrize(
    ("where", "times"),
    [
        ("sample", 1),
        ("Letters.make_prompt", 1),
        ("Letters.compute_reward", 1),
        ("Letters.compute_reward", 2),
        ("weights_before", 1),
        ("compare_answers", 1),
        ("train", 1),
        ("train", 2),
        ("Run._evaluated", 1),
        ("Finger.evaluate", 1),
        ("Run._saved", 1),
        ("RunCheckpoints.prune", 1),
        ("RunCheckpoints.prune", 2),
        ("GroupQueue.publish", 1),
        ("BaseEventLoop.run_until_complete", 1),
        ("Run.finish", 1),
        ("Run._final", 1),
        ("Run._end", 1),
        *((calls, 1) for calls in range(500, 11500, 2000)),
        *((calls, 2) for calls in range(1750, 11750, 4000)),
    ],
)
def test_ctrl_c_at_any_moment_ends_cleanly_and_the_same_call_resumes(
    client: mint.ServiceClient,
    settings: Settings,
    tmp_path: Path,
    whole: Path,
    capsys: Any,
    recwarn: pytest.WarningsRecorder,
    where: str | int,
    times: int,
) -> None:
    finger, cfg = Finger(where, times), settings(**SHORT)
    with finger.watching(), pytest.raises(Interrupted) as ended:
        run_grpo(finger, cfg, service=client)
    assert (finger.times, ended.value.code) == (0, 130)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("Interrupted. The ")
    assert (out.count("Interrupted. "), err) == (1, "")
    traceback.clear_frames(ended.tb)
    gc.collect()
    assert [w for w in recwarn if "never awaited" in str(w.message)] == []

    run_grpo(Letters(), cfg, service=client)
    events = [row["event"] for row in read_rows(tmp_path / "run" / EVENTS)]
    assert events.count("finished") == 1
    if not (whole / ROLLOUTS).exists():
        run_grpo(Letters(), settings(**SHORT, run_dir=str(whole)), service=client)
    assert answers(tmp_path / "run") == answers(whole)
    for row, wanted in zip(comparable(tmp_path / "run"), comparable(whole), strict=True):
        assert row == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_ctrl_c_while_a_step_trains_ends_that_step_first(
    client: mint.ServiceClient, settings: Settings, capsys: Any
) -> None:
    finger = Finger("train")
    with finger.watching(), pytest.raises(Interrupted):
        run_grpo(finger, settings(**SHORT), service=client)
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines.count("Interrupted: finishing this step. Press Ctrl-C again to stop immediately.")
        == 1
    )
    assert lines[-1] == "Interrupted. The same command resumes after step 2."


def test_ctrl_c_between_two_steps_keeps_the_step_before(
    client: mint.ServiceClient, settings: Settings, capsys: Any
) -> None:
    finger = Finger("Run.steps")
    with finger.watching(), pytest.raises(Interrupted):
        run_grpo(finger, settings(**SHORT), service=client)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Interrupted. The same command resumes after step 1."
    )


def test_ctrl_c_while_a_step_trains_gives_it_up_when_pressed_again(
    client: mint.ServiceClient, settings: Settings, capsys: Any
) -> None:
    finger = Finger("train", times=2)
    with finger.watching(), pytest.raises(Interrupted):
        run_grpo(finger, settings(**{**SHORT, "checkpoint_every": 1}), service=client)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Interrupted. The same command resumes after step 1."
    )


def test_a_run_in_another_thread_leaves_ctrl_c_alone(
    client: mint.ServiceClient, settings: Settings
) -> None:
    seen = []

    class Looking(Letters):
        def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
            seen.append(signal.getsignal(signal.SIGINT))

    run = threading.Thread(
        target=run_grpo, args=(Looking(), settings()), kwargs={"service": client}
    )
    run.start()
    run.join()
    assert seen == [signal.default_int_handler] * 2


def test_a_task_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_CLOSE_SECONDS", 0.05)

    async def stubborn() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def work() -> str:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        return "done" if not task.done() else "ended"

    assert interruption.Interruption().run(work) == "done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_forked_worker_ends_at_a_signal_and_its_run_continues(number: signal.Signals) -> None:
    async def work() -> int:
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                os._exit(128 + number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        await asyncio.sleep(0)
        return abs(os.waitstatus_to_exitcode(status)) % 128

    found = interruption.Interruption()
    assert (found.run(work), found.presses) == (number, 0)


def test_code_that_holds_up_the_event_loop_is_interrupted_where_it_is() -> None:
    reached = []

    async def work() -> None:
        try:
            while True:
                signal.raise_signal(signal.SIGINT)
        finally:
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interruption.Interruption().run(work)
    assert reached == ["the end"]
