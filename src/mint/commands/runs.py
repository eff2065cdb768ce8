"""``mint runs``: the training runs of a service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .checkpoints import print_checkpoints
from .output import JsonOption, print_fields, print_json, print_table, when
from .remote import Remote, UrlOption

app = typer.Typer(help="The training runs of a service.", no_args_is_help=True)


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Skip the newest so many.")] = 0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show your runs, the newest first."""
    answer = Remote(url).get("/api/v1/training_runs", limit=limit, offset=offset)
    runs, total = answer["training_runs"], answer["cursor"]["total_count"]
    if as_json:
        print_json(runs)
        return
    print_table(
        ["RUN", "MODEL", "RANK", "LAST USED", "LAST CHECKPOINT"],
        (_row(run) for run in runs),
        "There are no runs yet.",
    )
    if offset + len(runs) < total:
        typer.echo(f"{total} in all. More: mint runs list --offset {offset + len(runs)}")


def _row(run: dict[str, Any]) -> list[str]:
    last = run["last_checkpoint"] or run["last_sampler_checkpoint"]
    return [
        run["training_run_id"],
        run["base_model"],
        str(run["lora_rank"]),
        when(run["last_request_time"]),
        last["checkpoint_id"] if last else "-",
    ]


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(help="The id, as `mint runs list` shows it.")],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run and its checkpoints."""
    remote = Remote(url)
    found = remote.get(f"/api/v1/training_runs/{run}")
    checkpoints = remote.get(f"/api/v1/training_runs/{run}/checkpoints")["checkpoints"]
    if as_json:
        print_json({**found, "checkpoints": checkpoints})
        return
    fields = {
        "run": found["training_run_id"],
        "model": found["base_model"],
        "rank": str(found["lora_rank"]),
        "owner": found["model_owner"],
        "last used": when(found["last_request_time"]),
    }
    print_fields(
        fields | {key: str(value) for key, value in (found["user_metadata"] or {}).items()}
    )
    print_checkpoints(checkpoints)
