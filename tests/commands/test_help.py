"""The help of every command fits the terminal, and its sentences are wrapped only at the margin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mint.cli import app
from mint.commands.training import evaluate, train

WIDTHS = (80, 100)


def every_command(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        if name not in ("train", "eval"):
            yield from every_command(below, (*path, name))


def broken_early(text: str, width: int) -> list[str]:
    """Return the lines that end although the first word of the next one would fit."""
    lines = [line.rstrip() for line in text.splitlines()]
    return [
        line
        for line, below in pairwise(lines)
        if line.strip() and below.strip() and len(line) + 1 + len(below.split()[0]) <= width
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", list(every_command(typer.main.get_command(app))), ids=" ".join)
def test_sentences_are_wrapped_at_the_margin(path: tuple[str, ...], width: int) -> None:
    runner = CliRunner(env={"COLUMNS": str(width)})
    text = runner.invoke(app, [*path, "--help"], prog_name="mint").stdout
    assert max(map(len, text.splitlines())) <= width
    about = text.partition("╭")[0]
    assert "Usage: mint" in about
    assert broken_early(about, width - 1) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", [train, evaluate])
def test_the_help_with_all_settings_fits_the_terminal(
    command: Any, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert command.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    prose = [part for part in text.split("\n\n") if not part.startswith((" ", "usage:"))]
    assert prose
    assert [line for part in prose for line in broken_early(part, width)] == []
