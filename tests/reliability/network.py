"""A bad network: a TCP proxy that passes bytes on slowly, and cuts connections in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

PIECE = 40
PAUSE_S = 0.002


@dataclass
class Network:
    """The way to a service. Each piece of data may be delayed, or be the last of its connection."""

    port: int
    rng: random.Random
    cuts: int
    """How many connections it will cut."""
    share_cut: float = 0.15
    share_slow: float = 0.3
    base_url: str = ""
    happened: dict[str, int] = field(default_factory=lambda: {"cut": 0, "slow": 0})

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            far, there = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            back.transport.abort()
            return
        both = [self._carry(near, there), self._carry(far, back)]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            tasks = [asyncio.create_task(way) for way in both]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for writer in (back, there):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes, until either side ends or the connection is cut."""
        while data := await reader.read(1 << 16):
            chance = self.rng.random()
            if chance < self.share_cut and self.happened["cut"] < self.cuts:
                self.happened["cut"] += 1
                writer.write(data[: self.rng.randrange(len(data))])
                with contextlib.suppress(OSError):
                    await writer.drain()
                return
            if chance > 1 - self.share_slow:
                self.happened["slow"] += 1
                for at in range(0, min(len(data), 50 * PIECE), PIECE):
                    writer.write(data[at : at + PIECE])
                    await writer.drain()
                    await asyncio.sleep(PAUSE_S)
                data = data[50 * PIECE :]
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def bad_network(port: int, seed: int, cuts: int) -> Iterator[Network]:
    """A bad way to the service on a port of this machine, for as long as the block runs."""
    network = Network(port, random.Random(seed), cuts)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(network._connect, "127.0.0.1", 0))
    network.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield network
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
