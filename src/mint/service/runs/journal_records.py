"""Records of a journal file: a frame with a checksum, a JSON header and a body.

The checksum covers everything after it: both lengths, the header and the body. Records of the first
format have no mark, and their checksum covers only header and body; they can still be read.
"""

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MARK = b"mjr2"
_FRAME = struct.Struct(">IQI")  # checksum, length of header and body, length of the header
_PIECE = 1 << 20
_MAX_HEADER = 64 << 20
_HEADER_START = re.compile(rb'\{"(?:op|done|snapshot|answer)"')


@dataclass(frozen=True)
class JournalRecord:
    """The header of a complete record, and the position of its body."""

    header: dict[str, Any]
    body_start: int
    end: int

    @property
    def body_size(self) -> int:
        return self.end - self.body_start


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a record that precede its body."""
    encoded = json.dumps(header).encode()
    lengths = _FRAME.pack(0, len(encoded) + len(body), len(encoded))[4:]
    checksum = zlib.crc32(body, zlib.crc32(encoded, zlib.crc32(lengths)))
    return _MARK + checksum.to_bytes(4, "big") + lengths + encoded


def read_record(file: int, at: int, size: int) -> JournalRecord | None:
    """Return the record at ``at``, or None if it is incomplete or damaged."""
    is_marked = os.pread(file, len(_MARK), at) == _MARK
    marked = _read(file, at, len(_MARK), size) if is_marked else None
    return marked or _read(file, at, 0, size)


def _read(file: int, at: int, mark: int, size: int) -> JournalRecord | None:
    """Read a record whose mark has this length: 0 in the first format."""
    frame = os.pread(file, _FRAME.size, at + mark)
    if len(frame) < _FRAME.size:
        return None
    checksum, length, header_length = _FRAME.unpack(frame)
    start = at + mark + _FRAME.size
    end = start + length
    if end > size or not 0 < header_length <= min(length, _MAX_HEADER):
        return None
    encoded = os.pread(file, header_length, start)
    found = zlib.crc32(encoded, zlib.crc32(frame[4:] if mark else b""))
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
    return JournalRecord(header, start + header_length, end) if isinstance(header, dict) else None


def records_after(file: int, at: int, size: int) -> Iterator[JournalRecord]:
    """Find complete records after ``at``, where no record starts, by searching for headers."""
    position = at + 1
    while position < size:
        data = os.pread(file, _PIECE + 64, position)
        candidates = sorted(
            position + found.start() - _FRAME.size - mark
            for found in _HEADER_START.finditer(data)
            for mark in (len(_MARK), 0)
        )
        for candidate in candidates:
            if candidate > at and (record := read_record(file, candidate, size)) is not None:
                yield record
                at = record.end - 1
        position = max(position + _PIECE, at + 1)
