"""Work on a GPU that is recorded as CUDA graphs and replayed."""

import logging
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

from mint.engine.adapters.lora import AdapterBank

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


class Recordings(Generic[Key, Result]):
    """The recordings of one kind of pass, by a key.

    They share their memory, because a pass ends before the next one begins, and are forgotten when
    the bank's tensors move: their kernels read the old ones.
    """

    def __init__(self, bank: AdapterBank, what: str, most: int | None = None) -> None:
        """``what`` says in the log what runs without graphs where recording is not possible."""
        self.is_possible = True
        self.replays = 0
        self._what, self._most = what, most
        self._bank, self._generation = bank, bank.generation
        self._known: dict[Key, Result] = {}
        self._seen: set[Key] = set()
        self._memory: Any = None

    def find(
        self,
        key: Key,
        make: Callable[[Any], tuple[Result, torch.cuda.CUDAGraph]],
        at_once: bool = False,
    ) -> Result | None:
        """Return the recording of a key, or None: the pass runs without.

        It is made when a key comes for the second time, as that takes about as long as three
        passes, or ``at_once``. ``make`` gets the shared memory.
        """
        if self._generation != self._bank.generation:
            self.release()
            self._generation = self._bank.generation
        if not self.is_possible:
            return None
        if key not in self._known:
            if not at_once and key not in self._seen:
                self._seen.add(key)
                return None
            if self._most is not None and len(self._known) >= self._most:
                self.release()
            try:
                self._known[key], graph = make(self._memory)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                log.warning("%s without CUDA graphs, more slowly: %s", self._what, error)
                self.is_possible = False
                self.release()
                return None
            self._memory = self._memory or graph.pool()
        self.replays += 1
        return self._known[key]

    def release(self) -> bool:
        """Free the memory of all recordings; return whether there was any."""
        had_any = bool(self._known)
        if had_any:
            torch.cuda.synchronize()  # one of them may still run
            self._known.clear()
            self._memory = None  # the allocator forgets a pool with its last graph
            torch.cuda.empty_cache()
        self._seen.clear()
        return had_any


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
