"""An uploaded archive: a multipart form, written to disk as it arrives."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from mint.service.errors import UserError

_MAX_FIELD_BYTES = 4096


class _ParserToFolder(MultiPartParser):
    """Starlette's parser, which would write files to the machine's temporary folder."""

    folder: Path

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file = open(self.folder / f"file-{self._current_files}", "w+b")  # noqa: SIM115
            self._files_to_close_on_error.append(upload.file)  # type: ignore[arg-type]


async def receive_archive(
    folder: Path, headers: Headers, body: AsyncIterator[bytes], check: Callable[[int], None]
) -> tuple[Path, dict[str, str]]:
    """Write the file of a form into a folder; return its path and the form's other fields.

    ``check`` is called for every piece with the number of bytes so far, and may refuse more. Raises
    UserError when the body is not a form with one file.
    """
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        raise UserError(
            "Send the archive as multipart/form-data, in a field named 'file': "
            "curl -F file=@checkpoint.tar.gz …/api/v1/checkpoints/upload"
        )
    limits = {"max_files": 2, "max_fields": 16, "max_part_size": _MAX_FIELD_BYTES}
    parser = _ParserToFolder(headers, _checked(body, check), **limits)
    parser.folder = folder
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise UserError(
            f"The form cannot be parsed: {error.message} It may have a field named 'file' with the "
            f"archive, and name and base_model with up to {_MAX_FIELD_BYTES} bytes."
        ) from error
    files = [file for file in form.getlist("file") if isinstance(file, UploadFile)]
    await form.close()
    if len(files) != 1:
        has = "two files. Send one archive at a time" if files else "no file named 'file'"
        raise UserError(f"The form has {has}.")
    texts = {name: value for name, value in form.items() if isinstance(value, str)}
    return Path(str(files[0].file.name)), texts


async def _checked(
    body: AsyncIterator[bytes], check: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    received = 0
    async for piece in body:
        received += len(piece)
        check(received)
        yield piece
