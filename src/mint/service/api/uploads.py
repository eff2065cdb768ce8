"""Multipart bodies, written to disk as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from mint.service.errors import UserError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_TEXT_BYTES = 4096
_MAX_PARTS = 16
_CHECK_EVERY = 16 * 1024 * 1024


@dataclass
class Upload:
    """One file and a few texts, as an HTML form sends them.

    The file's bytes go to ``target``; receiving stops with UserError beyond ``limit`` bytes.
    ``check`` hears how many have arrived, every 16 MB, and may refuse more.
    """

    target: Path
    limit: int
    check: Callable[[int], None] = lambda received: None
    texts: dict[str, str] = field(default_factory=dict)
    has_file: bool = False
    _received: int = 0
    _checked: int = -_CHECK_EVERY
    _parts: int = 0
    _headers: dict[str, str] = field(default_factory=dict)
    _header: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    _name: str = ""
    _is_file: bool = False
    _text: bytearray = field(default_factory=bytearray)

    async def receive(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        """Read the whole body. Raises UserError when it is not a form with one file."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise UserError(
                "Send the archive as multipart/form-data, in a field named 'file': "
                "curl -F file=@checkpoint.tar.gz …/api/v1/checkpoints/upload"
            )
        with open(self.target, "wb") as file:
            parser = MultipartParser(boundary, self._callbacks(file))
            try:
                async for piece in body:
                    self._received += len(piece)
                    if self._received > self.limit:
                        raise UserError(f"The archive has more than {self.limit} bytes.")
                    if self._received - self._checked >= _CHECK_EVERY:
                        self._checked = self._received
                        self.check(self._received)
                    parser.write(piece)
                parser.finalize()
            except FormParserError as error:
                raise UserError(f"The form cannot be parsed: {error}.") from error
        if not self.has_file:
            raise UserError("The form has no file. Send the archive in a field named 'file'.")

    def _callbacks(self, file: BinaryIO) -> MultipartCallbacks:
        def on_part_data(data: bytes, start: int, end: int) -> None:
            if self._is_file:
                file.write(data[start:end])
            else:
                self._text += data[start:end]
                if len(self._text) > _MAX_TEXT_BYTES:
                    raise UserError(f"{self._name} has more than {_MAX_TEXT_BYTES} bytes.")

        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open_part,
            "on_part_data": on_part_data,
            "on_part_end": self._end_part,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise UserError(f"The form has more than {_MAX_PARTS} fields.")
        self._headers.clear()
        self._text.clear()

    def _end_header(self) -> None:
        name, value = (bytes(part).decode("latin-1") for part in self._header)
        self._headers[name.lower()] = value
        for part in self._header:
            part.clear()

    def _open_part(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", ""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == "file"
        if self._is_file and self.has_file:
            raise UserError("The form has two files. Send one archive at a time.")
        self.has_file = self.has_file or self._is_file

    def _end_part(self) -> None:
        if not self._is_file:
            self.texts[self._name] = self._text.decode(errors="replace")
