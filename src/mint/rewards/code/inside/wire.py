"""Exchange values between the two sandboxes: plain types only, one message at a time.

A subclass arrives as its plain base, so that an overridden ``__eq__`` is never called. What is not
plain becomes a reference to an object that lives on the model's side. The format is our own, and
the scripts in here import next to nothing, because starting them is most of what a run costs.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HEADER = 12
_COLLECTIONS: dict[bytes, Any] = {b"l": list, b"u": tuple, b"e": set, b"z": frozenset}


class Gone(BaseException):
    """The other side ended, took too long, or sent something that is not a message."""


class Unsupported(Exception):
    """A value that cannot be sent."""


def refuse(value: Any) -> int:
    """Refuse everything but plain values, for :func:`encode`."""
    raise Unsupported(f"a {type(value).__name__} is not a plain value")


def no_reference(number: int) -> Any:
    """Refuse everything but plain values, for :func:`decode`."""
    raise Unsupported(f"reference {number} is not a plain value")


def encode(value: Any, refer: Callable[[Any], int] = refuse) -> bytes:
    """Encode a value as bytes; ``refer`` numbers objects that are not plain."""
    if value is None or value is True or value is False:
        return {None: b"n", True: b"t", False: b"f"}[value]
    if isinstance(value, int):
        return b"i%x;" % int.__int__(value)
    if isinstance(value, float):
        return b"d" + float.hex(value).encode() + b";"
    if isinstance(value, complex):
        return f"c{float.hex(value.real)},{float.hex(value.imag)};".encode()
    if isinstance(value, str):
        text = str.encode(value, "utf-8", "surrogatepass")
        return b"s%d:" % len(text) + text
    if isinstance(value, bytes | bytearray):
        return b"b%d:" % len(value) + bytes(value)
    if isinstance(value, dict):
        return _encode_all(b"m", [x for pair in dict.items(value) for x in pair], refer)
    for letter, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return _encode_all(letter, list(kind.__iter__(value)), refer)
    return b"r%x;" % refer(value)


def _encode_all(letter: bytes, items: list[Any], refer: Callable[[Any], int]) -> bytes:
    parts = [letter + b"%d:" % len(items)]
    for item in items:  # a comprehension would be one more call for each level of nesting
        parts.append(encode(item, refer))
    return b"".join(parts)


def decode(data: bytes, follow: Callable[[int], Any]) -> Any:
    """Decode a message; ``follow`` returns the object of a number.

    Raises an ordinary exception on anything that is not a message.
    """
    value, end = _decode(data, 0, follow)
    if end != len(data):
        raise ValueError("there is more than one value")
    return value


def _decode(data: bytes, at: int, follow: Callable[[int], Any]) -> tuple[Any, int]:
    kind = data[at : at + 1]
    at += 1
    if kind in (b"n", b"t", b"f"):
        return {b"n": None, b"t": True, b"f": False}[kind], at
    if kind in (b"i", b"d", b"c", b"r"):
        end = data.index(b";", at)
        return _scalar(kind, data[at:end].decode(), follow), end + 1
    colon = data.index(b":", at, at + _HEADER)
    count = int(data[at:colon])
    at = colon + 1
    if count < 0 or count > len(data) - at:
        raise ValueError("a length is wrong")
    if kind in (b"s", b"b"):
        content = data[at : at + count]
        text = content.decode("utf-8", "surrogatepass") if kind == b"s" else content
        return text, at + count
    items = []
    for _ in range(count):
        item, at = _decode(data, at, follow)
        items.append(item)
    if kind == b"m":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    return _COLLECTIONS[kind](items), at


def _scalar(kind: bytes, text: str, follow: Callable[[int], Any]) -> Any:
    if kind == b"i":
        return int(text, 16)
    if kind == b"d":
        return float.fromhex(text)
    if kind == b"c":
        real, imaginary = text.split(",")
        return complex(float.fromhex(real), float.fromhex(imaginary))
    return follow(int(text, 16))


class MessageSocket:
    """Values over a socket, each at most ``limit`` bytes."""

    def __init__(self, descriptor: int, limit: int = 1 << 30) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._buffer = bytearray()

    def send(self, value: Any, refer: Callable[[Any], int] = refuse) -> None:
        """Send one value; :class:`Gone` when the other side has ended or it is too long."""
        message = encode(value, refer)
        if len(message) > self._limit:
            raise Gone("a message was longer than the limit")
        view = memoryview(b"%0*d" % (_HEADER, len(message)) + message)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            raise Gone("the other side ended") from None

    def receive(
        self, deadline: float | None = None, follow: Callable[[int], Any] = no_reference
    ) -> Any:
        """Return the next value, until ``deadline`` on the monotonic clock."""
        header = self._read(_HEADER, deadline)
        if not header.isdigit() or int(header) > self._limit:
            raise Gone("the program broke the protocol")
        return decode(self._read(int(header), deadline), follow)

    def _read(self, count: int, deadline: float | None) -> bytes:
        while len(self._buffer) < count:
            if deadline is not None:
                wait = max(0.0, deadline - time.monotonic())
                if not select.select([self._descriptor], [], [], wait)[0]:
                    raise Gone("took too long")
            try:
                chunk = os.read(self._descriptor, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                raise Gone("the program ended")
            self._buffer += chunk
        message = bytes(self._buffer[:count])
        del self._buffer[:count]
        return message

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
