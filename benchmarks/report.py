"""Write the tables of ``benchmarks/results/*.json`` into benchmarks/README.md.

    python -m benchmarks.report

A table stands between ``<!-- bench:cpu -->`` and ``<!-- /bench:cpu -->`` (and the same for
``gpu``). Reasons for missed targets are in ``benchmarks/results/reasons.json``, by the key of the
row, which ``python -m benchmarks.report --keys`` prints.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu import rows as cpu
from benchmarks.gpu import rows as gpu
from benchmarks.table import Row, explain_missed, markdown, plain

FOLDER = Path(__file__).resolve().parent
README = FOLDER / "README.md"
RESULTS = FOLDER / "results"
REASONS = "reasons.json"
KINDS = {"cpu": cpu, "gpu": gpu}


def make_rows(result: dict[str, Any]) -> list[Row]:
    """Return the rows of a result of any kind."""
    rows: list[Row] = KINDS[result["kind"]].rows(result)
    return rows


def render_text(result: dict[str, Any]) -> str:
    """Write a result for a terminal."""
    notes = KINDS[result["kind"]].notes(result)
    return "\n\n".join([plain(make_rows(result)), *notes])


def render(result: dict[str, Any], reasons: dict[str, str]) -> str:
    """Write a result in Markdown: the table, why targets were missed, and what else to know."""
    rows = make_rows(result)
    missed = explain_missed(rows, reasons)
    notes = [f"- {note}" for note in KINDS[result["kind"]].notes(result)]
    parts = [markdown(rows)]
    if missed:
        parts.append("\n".join(["Missed:", "", *missed]))
    parts.append("\n".join(notes))
    return "\n\n".join(parts)


def replace_between(text: str, kind: str, table: str) -> str:
    """Return a page with a table between its two markers, in place of what was there.

    >>> print(replace_between("<!-- bench:cpu -->old<!-- /bench:cpu -->", "cpu", "new"))
    <!-- bench:cpu -->
    new
    <!-- /bench:cpu -->
    """
    start, end = f"<!-- bench:{kind} -->", f"<!-- /bench:{kind} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"The page has no place for the table: write {start} and {end} into it.")
    return pattern.sub(lambda _: f"{start}\n{table}\n{end}", text, count=1)


def read_results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the results of a folder by kind, in the order of their files."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stem):
        if path.name != REASONS:
            result = json.loads(path.read_text())
            found.setdefault(result["kind"], []).append(result)
    return found


def read_reasons(folder: Path) -> dict[str, str]:
    """Return why targets were missed, by the key of the row."""
    path = folder / REASONS
    reasons: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return reasons


def write_readme(
    results: dict[str, list[dict[str, Any]]], reasons: dict[str, str], page: Path
) -> None:
    """Write the tables of all results into a page; a kind without results stays as it is."""
    text = page.read_text()
    for kind, several in results.items():
        text = replace_between(text, kind, "\n\n".join(render(one, reasons) for one in several))
    page.write_text(text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--keys", action="store_true", help="print the rows with their keys")
    options = parser.parse_args(arguments)
    results = read_results(options.results)
    if not results:
        parser.error(f"{options.results} has no results. Type: make bench")
    if options.keys:
        for result in (one for several in results.values() for one in several):
            for row in make_rows(result):
                print(f"{row.key:40} {row.verdict:12} {row.what}")
        return
    write_readme(results, read_reasons(options.results), options.readme)
    print(f"Wrote the tables of {', '.join(results)} into {options.readme}.")


if __name__ == "__main__":
    main()
