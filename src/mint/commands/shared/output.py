"""Output of commands: tables for people, JSON for programs, one message for a mistake."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn
from rich.table import Table

from mint.watch.durations import duration

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_WIDE = 1000  # output to a file or pipe is not wrapped


class Mistake(Exception):
    """An error that the user can correct. Its text is printed, and the exit code is 2."""


def say(text: str) -> None:
    """Print a message about what a command does, on standard error."""
    typer.echo(f"mint: {text}", err=True)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_rows(
    rows: Sequence[dict[str, Any]],
    as_json: bool,
    columns: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[str]],
    nothing: str,
) -> None:
    """Print rows as JSON, or as a table whose cells are made from each row."""
    if as_json:
        print_json(rows)
    else:
        print_table(columns, map(cells, rows), nothing)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str = "") -> None:
    """Print a table, or the text ``nothing`` when there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        _console().print(table)
    else:
        typer.echo(nothing)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print the fields of one object, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, str(value))
    _console().print(table)


def _console() -> Console:
    width = None if sys.stdout.isatty() else _WIDE
    # Without emoji=False, rich replaces ":train:" in the id of a run by a picture.
    return Console(width=width, markup=False, highlight=False, emoji=False)


def transfer() -> Progress:
    """Return a progress bar for bytes, on standard error."""
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=Console(stderr=True))


def size(count: float | None) -> str:
    """Format a number of bytes.

    >>> size(1536), size(None)
    ('1.5 kB', '-')
    """
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def when(time: str | None) -> str:
    """Format an ISO time as local time.

    >>> when(None)
    '-'
    """
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M") if time else "-"


def age(time: str | None) -> str:
    """Return how long ago an ISO time was.

    >>> age(None)
    '-'
    """
    if not time:
        return "-"
    return duration((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
