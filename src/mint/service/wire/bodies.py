"""Request bodies before they are decoded: decompression, and which operation they are."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zstandard
from pydantic_core import from_json

from mint.engine.messages import UserError

MAX_FIELDS = 1 << 16
"""How many fields a protobuf message may have at its top level; each datum is one."""
_PIECE = 1024
"""How much is decompressed at once; the most that it can become is 32 MB."""


class BadBody(UserError):
    """A body that cannot be decompressed. ``readable`` is the part before the fault."""

    def __init__(self, text: str, readable: bytes = b"") -> None:
        super().__init__(text)
        self.readable = readable


@dataclass(frozen=True)
class Address:
    """The run and the number of an operation: all that the queue needs.

    A ``load_weights`` that creates its run has no run id; its body names a session.
    """

    run_id: str | None
    seq_id: int | None
    forward_only: bool = False


def negative_number(key: str) -> int:
    """Return a number for an operation that came without one; the same for the same key."""
    return -1 - int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")


def open_body(
    body: bytes, encoding: str, limit: int, grow: Callable[[int], None] = lambda size: None
) -> bytes:
    """Decompress a body to at most ``limit`` bytes. Raises BadBody.

    ``grow`` is called with the size of each piece, and may raise to end the decompression.
    """
    if encoding.lower() != "zstd":
        raise BadBody(f"Content-Encoding {encoding!r} is not supported; send zstd or none.")
    opened, frame, at = bytearray(), zstandard.ZstdDecompressor().decompressobj(), 0
    try:
        while at < len(body) and not frame.eof:
            piece = frame.decompress(body[at : at + _PIECE])
            at += _PIECE
            opened += piece
            if len(opened) > limit:
                why = f"The zstd body unpacks to more than {limit} bytes. Send fewer datums."
                raise BadBody(why, bytes(opened[: 1 << 16]))
            grow(len(piece))
    except zstandard.ZstdError as error:
        raise BadBody(f"The zstd body is damaged: {error}.", bytes(opened)) from error
    if not frame.eof or frame.unused_data or at < len(body):
        raise BadBody("The zstd body is not one complete frame. Send it again.", bytes(opened))
    return bytes(opened)


def read_address(body: bytes, is_protobuf: bool) -> Address | None:
    """Return the run and number of an operation, also if the rest of a message is damaged.

    Raises UserError for a message of more than ``MAX_FIELDS`` fields: they are read one by one.
    """
    if is_protobuf:
        return _protobuf_address(body)
    try:
        payload = from_json(body)
    except ValueError:
        return None
    if not isinstance(payload, dict):
        return None
    run_id, seq_id = payload.get("model_id"), payload.get("seq_id")
    if run_id is None and payload.get("session_id") is not None:
        return Address(None, None)
    if (
        not isinstance(run_id, str)
        or isinstance(seq_id, bool)
        or not isinstance(seq_id, int | None)
    ):
        return None
    return Address(run_id, seq_id)


def _protobuf_address(body: bytes) -> Address | None:
    found: dict[int, int | bytes] = {}
    with contextlib.suppress(IndexError, ValueError):
        found.update(_protobuf_fields(body))
    run_id, seq_id = found.get(1), found.get(2, 0)
    if not isinstance(run_id, bytes) or not isinstance(seq_id, int):
        return None
    return Address(run_id.decode(errors="replace"), seq_id or None, found.get(6) == 1)


def _protobuf_fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Return the scalar fields and the run id; long fields are skipped without a copy."""
    at = count = 0
    while at < len(body):
        count += 1
        if count > MAX_FIELDS:
            raise UserError(f"The message has more than {MAX_FIELDS} fields. Send fewer datums.")
        tag, at = _varint(body, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(body, at)
            yield number, value
        elif kind == 2:
            length, at = _varint(body, at)
            if at + length > len(body):
                raise ValueError("truncated")
            if number == 1:
                yield number, body[at : at + length]
            at += length
        else:
            raise ValueError("no such field in this message")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a varint of more than 64 bits")
