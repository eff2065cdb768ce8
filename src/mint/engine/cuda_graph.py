"""Recording work on a GPU as a CUDA graph."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def record(
    run: Callable[[], Result], memory: Any, warm_ups: int = 2
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record what ``run`` launches, into memory that graphs share (None: new memory).

    ``run`` is called a few times first, to warm up: kernels are compiled then.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(warm_ups):
                run()
    finally:  # after an error too: the caller changes what these launched kernels read
        torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory):
        result = run()
    return graph, result
