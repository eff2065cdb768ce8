"""The output of a run: a line for every step, and on a terminal the progress of sampling."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from typing import Any

import mint
from mint.rl import RLConfig, run_grpo
from mint.rl.loop.progress import show_during
from tests.rl.conftest import Letters

Settings = Callable[..., RLConfig]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(stream: io.StringIO) -> str:
    """What is written while some work waits to be looked at."""

    async def wait() -> str:
        looked = asyncio.Event()

        def text() -> str:
            looked.set()
            return "3 of 8 answers"

        async def work() -> str:
            if stream.isatty():
                await looked.wait()
            return "done"

        return await show_during(work, text, stream)

    assert asyncio.run(wait()) == "done"
    return stream.getvalue()


def test_something_moves_on_a_terminal_and_is_gone_afterwards() -> None:
    written = shown_on(Terminal())
    assert "3 of 8 answers" in written
    assert written.endswith("\r\x1b[2K")


def test_nothing_is_written_to_a_pipe_or_a_file() -> None:
    assert shown_on(io.StringIO()) == ""


def test_a_steps_line_has_step_total_reward_success_signal_and_seconds(
    client: mint.ServiceClient, settings: Settings, metrics: Any, capsys: Any
) -> None:
    cfg = settings(steps=2, success_threshold=0.5)
    run_grpo(Letters(), cfg, service=client)
    out = capsys.readouterr().out
    assert "accuracy" not in out
    assert "\x1b" not in out
    line = r"Step (\d)/2: reward=([\d.]+), success=([\d.]+)%, signal in (\d) of 8 answers, [\d.]+ s"
    found = re.findall(f"^{line}$", out, re.M)
    assert found == [
        (
            str(row["step"]),
            f"{row['reward/mean']:.3f}",
            f"{100 * row['reward/success']:.1f}",
            f"{row['rollouts/signal']:.0f}",
        )
        for row in metrics()
    ]
