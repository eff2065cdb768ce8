"""The channel between a service and an engine: the framing of its messages, and its two ends.

A frame is a count, as many lengths, and as many parts: a pickle, and the large buffers that it
refers to (pickle's protocol 5). Buffers are sent and received without a copy: a copy of 200 MB
stops every other thread of the process for a tenth of a second.
"""

import asyncio
import contextlib
import pickle
import socket
import struct
from typing import Any

_COUNT = struct.Struct(">I")
_LARGE = 64 * 1024
"""Buffers of this size and above are parts of their own."""


class Channel:
    """An end that blocks: the engine's."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = sock.makefile("rb")  # small messages that wait are read all at once

    def send(self, message: Any) -> None:
        for piece in encode(message):
            self._sock.sendall(piece)

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()
        self._sock.close()

    def receive(self) -> Any:
        """Return the next message. Raises EOFError or ConnectionError when the peer is gone."""
        (count,) = _COUNT.unpack(self._read(_COUNT.size))
        sizes = struct.unpack(f">{count}Q", self._read(8 * count))
        body, *buffers = [self._read(size) for size in sizes]
        return pickle.loads(body, buffers=buffers)

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        if self._stream.readinto(buffer) < size:
            raise EOFError("The other side closed the channel.")
        return buffer


class AsyncChannel:
    """An end on an event loop: the service's. Messages are sent in the order of :meth:`send`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._outbox: asyncio.Queue[list[bytes | memoryview]] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send_all())

    def send(self, message: Any) -> None:
        self._outbox.put_nowait(encode(message))

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                for piece in await self._outbox.get():
                    await loop.sock_sendall(self._sock, piece)
        except ConnectionError:
            return  # the receiving side notices that the engine is gone

    async def receive(self) -> Any:
        """Return the next message. Raises EOFError or ConnectionError when the peer is gone."""
        (count,) = _COUNT.unpack(await self._read(_COUNT.size))
        sizes = struct.unpack(f">{count}Q", await self._read(8 * count))
        body, *buffers = [await self._read(size) for size in sizes]
        return pickle.loads(body, buffers=buffers)

    async def _read(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        rest = memoryview(buffer := bytearray(size))
        while rest:
            if not (received := await loop.sock_recv_into(self._sock, rest)):
                raise EOFError("The other side closed the channel.")
            rest = rest[received:]
        return buffer

    def finish(self) -> None:
        """Send no more: the engine ends itself when it has read everything."""
        self._sender.cancel()
        with contextlib.suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close the socket. No task may be receiving."""
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        self._sock.close()


def encode(message: Any) -> list[bytes | memoryview]:
    """Return the pieces of a frame, in the order in which they are sent."""
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE:
            return True
        buffers.append(raw)
        return False

    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=is_small)
    sizes = [len(body), *(buffer.nbytes for buffer in buffers)]
    return [_COUNT.pack(len(sizes)) + struct.pack(f">{len(sizes)}Q", *sizes) + body, *buffers]
