"""Pauses in a long pass, in which other work is done.

A training pass of a small model takes a second or more on a CPU. Samples must not wait for its end,
so it pauses between layers, forward and backward, and between chunks of logits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

Work = Callable[[], None]

_work: Work | None = None


@contextmanager
def pausing(work: Work | None) -> Iterator[None]:
    """Call ``work`` at every pause inside. It may run passes of its own, which do not pause."""
    global _work
    before, _work = _work, work
    try:
        yield
    finally:
        _work = before


def pause() -> None:
    """Do the work for which passes pause, if there is any."""
    if (work := _work) is not None:
        with pausing(None):
            work()


def pause_at(hidden: Tensor) -> None:
    """Pause now, and again when the backward pass has the gradient of these hidden states."""
    pause()
    if _work is not None and hidden.requires_grad:
        hidden.register_hook(lambda _: pause())  # type: ignore[no-untyped-call]
