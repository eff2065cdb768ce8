"""``mint usage``: what keys and runs used."""

from typing import Annotated, Any, Literal

import typer

from mint.commands.shared.durations import parse_duration
from mint.commands.shared.output import JsonOption, print_json, print_table, size, when
from mint.commands.shared.remote import Remote, UrlOption

_NUMBERS = ("prompt_tokens", "tokens_sampled", "tokens_trained", "checkpoints")


def usage(
    by: Annotated[
        Literal["key", "run"], typer.Option(help="Show one line per key or per run.")
    ] = "key",
    since: Annotated[
        str | None, typer.Option(help="Count only this period, in hours: 7d, 12h")
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show tokens sampled and trained, and checkpoints now: of your key, or with an admin key of
    all keys."""
    query = {"by": by} | ({"since_s": parse_duration(since)} if since else {})
    rows = Remote.running_or_embedded(url).get("/api/v1/mint/usage", **query)["usage"]
    if as_json:
        print_json(rows)
        return
    names = ["KEY", *(["RUN"] if by == "run" else [])]
    print_table(
        [*names, "PROMPT", "SAMPLED", "TRAINED", "CHECKPOINTS", "SIZE", "LAST USE"],
        (_row(row, by) for row in rows),
        "There is no usage.",
    )


def _row(row: dict[str, Any], by: str) -> list[str]:
    run = [row["run_id"] or "(base models)"] if by == "run" else []
    numbers = [f"{row[name]:,}" for name in _NUMBERS]
    return [row["key"], *run, *numbers, size(row["bytes"]), when(row["last_used"])]
