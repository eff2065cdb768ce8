"""Recording work on a GPU as a CUDA graph."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def record(
    run: Callable[[], Result], memory: Any, warm_ups: int = 2
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record what ``run`` launches, into memory that graphs share (None: new memory).

    ``run`` is called a few times first, to warm up.
    """
    warm_up(run, warm_ups)
    return capture(run, memory)


def warm_up(run: Callable[[], Any], times: int = 1) -> None:
    """Run what is recorded next, so that its kernels are compiled."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(times):
                run()
    finally:  # after an error too: the caller changes what these kernels read
        torch.cuda.current_stream().wait_stream(stream)


def capture(run: Callable[[], Result], memory: Any) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record what ``run`` launches, without warming up."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        result = run()
    return graph, result
