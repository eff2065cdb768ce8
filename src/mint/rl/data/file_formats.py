"""Rows of a data file: JSONL, JSON, CSV, TSV, Parquet, or a folder of a Hugging Face dataset.

Every mistake in a file is a :class:`DataError` that names the file, the line or row, and what to
type instead.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError, closest

_WIDEST_CELL = 2**31 - 1  # the largest cell of a CSV file, in characters
_ROW = '{"prompt": "What is 2 + 2?", "answer": "4"}'
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class DataError(ConfigError):
    """A data file that cannot be used. The text names the file, the row and the field."""


@dataclass(frozen=True)
class Row:
    """The fields of one row, and where it is."""

    fields: dict[str, Any]
    place: str
    """As in ``train.jsonl, line 3``."""


def setting(name: str, value: object = "...") -> str:
    """Describe how to set an argument of the task, in both ways that exist.

    >>> setting("prompt_column", "question")
    "task.arguments.prompt_column=question (in a script: prompt_column='question')"
    """
    typed = str(value).lower() if isinstance(value, bool) else value
    return f"task.arguments.{name}={typed} (in a script: {name}={value!r})"


def read_rows(source: str | Path, split: str | None = None, argument: str = "file") -> list[Row]:
    """Read all rows of a file, or of one split of a folder. ``argument`` is for error messages."""
    path = Path(source).expanduser()
    if path.is_dir():
        from mint.rl.data.folder import files_of_split

        files = files_of_split(path, split, argument.replace("file", "split"))
    elif path.is_file():
        if split is not None:
            raise DataError(f"{path} is a single file without splits. Leave out split={split}.")
        files = [path]
    else:
        raise _missing(path, argument)
    rows = [row for file in files for row in _read_file(file)]
    if not rows:
        raise DataError(f"{path} has no rows. It needs one row per problem.")
    return rows


def _missing(path: Path, argument: str) -> DataError:
    if path.parent.is_dir():
        beside = [each.name for each in path.parent.iterdir() if not each.name.startswith(".")]
        readable = sorted(name for name in beside if Path(name).suffix.lower() in READERS)
        hint = closest(path.name, beside)
        if not hint and readable:
            hint = f" Data files in {path.parent}: {', '.join(readable[:5])}."
    else:
        hint = f" There is no folder {path.parent} either."
    return DataError(f"There is no file {path}.{hint} Set {setting(argument, 'FILE')}.")


def _read_file(path: Path) -> list[Row]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        what = f"ends in {path.suffix!r}" if path.suffix else "has no file extension"
        raise DataError(f"{path} {what}. Rename or convert it to one of {', '.join(READERS)}.")
    try:
        return list(reader(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _decoded(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark."""
    content = path.read_bytes()
    if content[:2] in _UTF_16:
        raise DataError(
            f"{path} is encoded as UTF-16. Convert it to UTF-8: "
            f"iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise DataError(
            f"{path}, line {line}: byte {column} of the line is not UTF-8 "
            f"(0x{content[error.start]:02x}). If the file is Latin-1, convert it: "
            f"iconv -f LATIN1 -t UTF-8 {path.name} > utf8-{path.name}"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}, line {line}: contains a zero byte, so this is not a text file.")
    return text


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{place} is not JSON: {_reason(error)}. A row is one line, as in {_ROW}"
            ) from None
        if number == 1 and isinstance(value, list):
            raise DataError(
                f"{place} is a list, so this is a JSON file, not JSON Lines. Rename it to "
                f"{path.stem}.json."
            )
        yield _row(value, place)


def _read_json(path: Path) -> Iterator[Row]:
    text = _decoded(path)
    try:
        rows = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) > 1 and all(line.lstrip().startswith("{") for line in lines[:2]):
            raise DataError(
                f"{path} has one JSON object on each line. Rename it to {path.stem}.jsonl."
            ) from None
        raise DataError(f"{path} is not JSON: {_reason(error)}.") from None
    if not isinstance(rows, list):
        raise DataError(
            f"{path} contains {type_name(rows)}; it must be a list of rows: "
            '[{"prompt": ..., "answer": ...}, ...].'
        )
    for number, value in enumerate(rows, start=1):
        yield _row(value, f"{path}, row {number}")


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        wanted = f"a row must be an object with named fields, as in {_ROW}"
        raise DataError(f"{place} is {type_name(value)}; {wanted}")
    return Row(value, place)


def _read_csv(path: Path) -> Iterator[Row]:
    lines = re.split("(?<=\n)", _decoded(path))  # csv joins the lines of a quoted cell itself
    delimiter, separators = ("\t", "tabs") if path.suffix.lower() == ".tsv" else (",", "commas")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    names: list[str] = []
    start = 1
    before = csv.field_size_limit(_WIDEST_CELL)
    try:
        for cells in reader:
            place, start = f"{path}, line {start}", reader.line_num + 1
            if cells and not names:
                names = _checked_header(cells, place)
            elif cells and len(cells) != len(names):
                raise DataError(
                    f"{place} has {len(cells)} cells, and the header has {len(names)} columns: "
                    f"{', '.join(names)}. Put cells with {separators} into double quotes."
                )
            elif cells:
                yield Row(dict(zip(names, cells, strict=True)), place)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: {error}. Enclose cells that contain quotes, commas or "
            'newlines in double quotes, and double the quotes inside: ""'
        ) from None
    finally:
        csv.field_size_limit(before)


def _checked_header(cells: list[str], place: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if "" in names or twice is not None:
        what = "a column without a name" if "" in names else f"the column {twice!r} twice"
        raise DataError(f"{place}: the header has {what}. The first line names the columns.")
    return names


def _read_arrow(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    kind = "Parquet" if path.suffix.lower() == ".parquet" else "Arrow"
    try:
        if kind == "Parquet":
            table = pyarrow.parquet.read_table(path)
        else:
            with pyarrow.memory_map(str(path)) as source:
                table = pyarrow.ipc.open_stream(source).read_all()
        rows = table.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable {kind} file: {error}.") from None
    for number, values in enumerate(rows, start=1):
        yield Row(values, f"{path}, row {number}")


def type_name(value: Any) -> str:
    """Return the name of a JSON value's type.

    >>> type_name(None), type_name([1])
    ('null', 'a list')
    """
    names = {"NoneType": "null", "bool": "true or false", "int": "a number", "float": "a number"}
    names |= {"str": "a string", "dict": "an object", "list": "a list"}
    kind = type(value).__name__
    return names.get(kind, f"a {kind}")


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_arrow,
    ".arrow": _read_arrow,
}
"""The reader of each file extension."""
