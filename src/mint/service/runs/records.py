"""Records of a journal file: a frame with a checksum, a JSON header and a body.

The checksum covers everything after it: both lengths, the header and the body. Records of the first
format have no mark, and their checksum covers only header and body; they can still be read.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MARK = b"mjr2"
_CHECKED = struct.Struct(">QI")  # length of header and body, length of the header
_FRAME = struct.Struct(">4sIQI")  # mark, checksum of the rest, and the two lengths
_OLD_FRAME = struct.Struct(">IQI")
_PIECE = 1 << 20
_MAX_HEADER = 64 << 20
_HEADER_STARTS = (b'{"op"', b'{"done"', b'{"snapshot"', b'{"answer"')


@dataclass(frozen=True)
class JournalRecord:
    """The position of a complete record, and its header."""

    header: dict[str, Any]
    start: int
    body_start: int
    end: int

    @property
    def body_size(self) -> int:
        return self.end - self.body_start


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a record that precede its body."""
    encoded = json.dumps(header).encode()
    lengths = _CHECKED.pack(len(encoded) + len(body), len(encoded))
    checksum = zlib.crc32(body, zlib.crc32(encoded, zlib.crc32(lengths)))
    return _MARK + checksum.to_bytes(4, "big") + lengths + encoded


def read_record(file: int, at: int, size: int) -> JournalRecord | None:
    """Return the record at ``at``, or None if it is incomplete or damaged."""
    frame = os.pread(file, _FRAME.size, at)
    if frame[:4] == _MARK and len(frame) == _FRAME.size:
        _, checksum, length, header_length = _FRAME.unpack(frame)
        covered = frame[8:]
        if found := _checked(file, at, _FRAME.size, covered, checksum, length, header_length, size):
            return found
    if len(frame) < _OLD_FRAME.size:
        return None
    checksum, length, header_length = _OLD_FRAME.unpack(frame[: _OLD_FRAME.size])
    return _checked(file, at, _OLD_FRAME.size, b"", checksum, length, header_length, size)


def _checked(
    file: int,
    at: int,
    frame_size: int,
    covered: bytes,
    checksum: int,
    length: int,
    header_length: int,
    size: int,
) -> JournalRecord | None:
    start = at + frame_size
    end = start + length
    if end > size or not 0 < header_length <= min(length, _MAX_HEADER):
        return None
    encoded = os.pread(file, header_length, start)
    found = zlib.crc32(encoded, zlib.crc32(covered))
    position = start + header_length
    while position < end:
        piece = os.pread(file, min(_PIECE, end - position), position)
        if not piece:
            return None
        found = zlib.crc32(piece, found)
        position += len(piece)
    if found != checksum:
        return None
    try:
        header = json.loads(encoded)
    except ValueError:
        return None
    return (
        JournalRecord(header, at, start + header_length, end) if isinstance(header, dict) else None
    )


def records_after(file: int, at: int, size: int) -> Iterator[JournalRecord]:
    """Find complete records after ``at``, where no record starts, by searching for headers."""
    position = at + 1
    while position < size:
        data = os.pread(file, _PIECE + 64, position)
        candidates = sorted(
            position + offset - frame.size
            for begin in _HEADER_STARTS
            for offset in _find_all(data, begin)
            for frame in (_FRAME, _OLD_FRAME)
        )
        for candidate in candidates:
            if candidate > at and (found := read_record(file, candidate, size)) is not None:
                yield found
                at = found.end - 1
        position = max(position + _PIECE, at + 1)


def _find_all(data: bytes, part: bytes) -> Iterator[int]:
    found = data.find(part)
    while found >= 0:
        yield found
        found = data.find(part, found + 1)
