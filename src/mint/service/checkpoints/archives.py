"""Checkpoint archives: packs them for download, and checks and unpacks uploads."""

import contextlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from mint.service.checkpoints.peft import CONFIG, OPTIMIZER, TENSORS
from mint.service.checkpoints.storage import DESCRIPTION
from mint.service.errors import UserError

COMPLETE = "checkpoint_complete"
_FILES = (TENSORS, CONFIG, OPTIMIZER, DESCRIPTION)
_MAX_MEMBERS = 1000
_MAX_DEPTH = 2
_PIECE = 1 << 20
_MAX_RATIO, _SPARE_BYTES = 20, 16 * 1024 * 1024
_MAX_HEADER_BYTES, _MAX_HEADERS_BYTES = 8 * 1024, 1024 * 1024
"""Limits of one extended header, whose parsing takes quadratic time, and of all together."""
_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


def pack(files: Iterable[BinaryIO]) -> Iterator[bytes]:
    """Return the open files of a checkpoint as ``.tar.gz`` in pieces, and close them.

    Weights do not compress, so gzip does not try. The last, empty file marks a complete archive.
    """
    gzip = zlib.compressobj(level=0, wbits=31)
    with contextlib.ExitStack() as opened:
        for file in [opened.enter_context(file) for file in files]:
            info = tarfile.TarInfo(Path(file.name).name)
            info.size = os.fstat(file.fileno()).st_size
            yield gzip.compress(info.tobuf(tarfile.GNU_FORMAT))
            while piece := file.read(_PIECE):
                yield gzip.compress(piece)
            yield gzip.compress(b"\0" * (-info.size % tarfile.BLOCKSIZE))
        yield gzip.compress(tarfile.TarInfo(COMPLETE).tobuf(tarfile.GNU_FORMAT))
        yield gzip.compress(b"\0" * (2 * tarfile.BLOCKSIZE))
        yield gzip.flush()


def unpack(
    archive: Path, folder: Path, limit: int, check: Callable[[int], None] = lambda size: None
) -> None:
    """Unpack the files of a checkpoint into an empty folder, and nothing anywhere else.

    Names are only compared with those of a checkpoint's files, never used as paths. ``check`` is
    called before each piece is written, with its size. Raises UserError for links, devices, paths
    outside the folder, and archives that unpack to more than ``limit`` bytes.
    """
    try:
        largest = _SPARE_BYTES + _MAX_RATIO * archive.stat().st_size  # weights hardly compress
        with _Archive.open(archive, "r|*", tarinfo=_SmallHeader) as packed:
            _unpack(packed, folder, min(limit, largest), check)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"The file is not a complete .tar.gz archive: {error}.") from error


class _Archive(tarfile.TarFile):
    header_bytes = 0


class _SmallHeader(tarfile.TarInfo):
    """An archive entry that refuses large extended headers, which tarfile reads into memory.

    The map of a sparse file belongs to its header and has no limit, so sparse files are refused
    before it is read.
    """

    def _proc_member(self, archive: _Archive) -> Any:
        if self.type in _EXTENSIONS:
            archive.header_bytes += tarfile.BLOCKSIZE + self.size
            if self.size > _MAX_HEADER_BYTES or archive.header_bytes > _MAX_HEADERS_BYTES:
                raise tarfile.ReadError(f"a header has {self.size} bytes, or there are too many")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _refuse_sparse(self, *_: Any) -> Any:
        raise tarfile.ReadError("it has a sparse file")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _unpack(
    packed: tarfile.TarFile, folder: Path, limit: int, check: Callable[[int], None]
) -> None:
    left = limit
    for count, member in enumerate(packed):
        if count >= _MAX_MEMBERS:
            raise UserError(f"The archive has more than {_MAX_MEMBERS} entries.")
        left -= member.size
        if left < 0 or member.size < 0:
            raise UserError(f"The archive unpacks to more than {limit} bytes.")
        name = _checked_name(member)
        if name not in _FILES:
            continue
        content = packed.extractfile(member)
        if content is None or (folder / name).exists():
            raise UserError(f"The archive has {name} twice.")
        with content, open(folder / name, "xb") as file:
            while piece := content.read(_PIECE):
                check(len(piece))
                file.write(piece)


def _checked_name(member: tarfile.TarInfo) -> str | None:
    """Return the name of a file, or None for a folder. Raises UserError for anything else."""
    path = PurePosixPath(member.name)
    shown = repr(member.name[:100])
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise UserError(f"The archive has the entry {shown}, which leads outside of it.")
    if member.isdir():
        return None
    if not member.isreg():
        raise UserError(f"The archive's entry {shown} is a link or device, not a plain file.")
    return path.name if len(path.parts) <= _MAX_DEPTH else None
