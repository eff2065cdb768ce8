"""Progress of a run: a line for every step and, on a terminal, the progress of sampling."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TextIO, TypeVar

Result = TypeVar("Result")
_SECONDS = 0.5
_CLEAR = "\r\x1b[2K"


def step_line(step: int, total: int, numbers: Mapping[str, float], seconds: float) -> str:
    """Return the line that is printed after a step.

    >>> numbers = {"reward/mean": 0.4, "reward/success": 0.25, "rollouts": 32.0}
    >>> step_line(3, 20, numbers | {"rollouts/signal": 24.0}, 4.06)
    'Step 3/20: reward=0.400, success=25.0%, signal in 24 of 32 answers, 4.1 s'
    """
    return (
        f"Step {step}/{total}: reward={numbers['reward/mean']:.3f}, "
        f"success={numbers['reward/success']:.1%}, signal in {numbers['rollouts/signal']:.0f} of "
        f"{numbers['rollouts']:.0f} answers, {seconds:.1f} s"
    )


def sampling_line(step: int, total: int, answered: int, answers: int, seconds: float) -> str:
    """Return the progress of a step's sampling.

    >>> sampling_line(3, 20, 40, 32, 4.06)
    'Step 3/20: sampling, 32 of 32 answers, 4 s'
    """
    counted = f"{min(answers, answered)} of {answers} answers"
    return f"Step {step}/{total}: sampling, {counted}, {seconds:.0f} s"


async def show_during(
    work: Callable[[], Awaitable[Result]], shown: Callable[[], str], stream: TextIO | None = None
) -> Result:
    """Return the result of ``work()``; a terminal shows ``shown()`` until it is there."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return await work()

    async def tick() -> None:
        while True:
            stream.write(f"{_CLEAR}  {shown()}")
            stream.flush()
            await asyncio.sleep(_SECONDS)

    ticking = asyncio.ensure_future(tick())
    try:
        return await work()
    finally:
        ticking.cancel()
        stream.write(_CLEAR)
        stream.flush()
