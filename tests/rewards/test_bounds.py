"""Every function returns in bounded time for any input up to a megabyte."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rewards.bombs import calls

PROCESSOR_SECONDS = 1.0


@pytest.mark.slow
def test_every_function_survives_every_megabyte() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.rewards.bombs", str(PROCESSOR_SECONDS)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    called = ran.stdout.splitlines()
    assert called[-1] == "all survived", f"took too long: {called[-1]}\n{ran.stderr[-1000:]}"
    assert len(called) == len(list(calls())) + 1
