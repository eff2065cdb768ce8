"""``mint usage``: tokens and checkpoints by key or by run."""

from typing import Annotated, Any, Literal

import typer

from mint.commands.shared.options import parse_duration
from mint.commands.shared.output import JsonOption, print_rows, size, when
from mint.commands.shared.remote import Remote, UrlOption

_NUMBERS = ("prompt_tokens", "tokens_sampled", "tokens_trained", "checkpoints")


def usage(
    by: Annotated[
        Literal["key", "run"], typer.Option(help="Show one line per key or per run.")
    ] = "key",
    since: Annotated[
        str | None, typer.Option(help="Count only the latest period, such as 7d or 12h.")
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show tokens sampled and trained, and the current checkpoints, of your key.

    An admin key shows all keys.
    """
    query = {"by": by} | ({"since_s": parse_duration(since)} if since else {})
    rows = Remote.running_or_embedded(url).get("/api/v1/mint/usage", **query)["usage"]
    names = ["KEY", *(["RUN"] if by == "run" else [])]
    columns = [*names, "PROMPT", "SAMPLED", "TRAINED", "CHECKPOINTS", "SIZE", "LAST USE"]

    def cells(row: dict[str, Any]) -> list[str]:
        run = [row["run_id"] or "(base models)"] if by == "run" else []
        numbers = [f"{row[name]:,}" for name in _NUMBERS]
        return [row["key"], *run, *numbers, size(row["bytes"]), when(row["last_used"])]

    print_rows(rows, as_json, columns, cells, "There is no usage.")
