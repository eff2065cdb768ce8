"""``mint runs``: the training runs of a service."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mint.commands.shared.names import run_id
from mint.commands.shared.options import YesOption
from mint.commands.shared.output import (
    JsonOption,
    age,
    print_fields,
    print_json,
    print_rows,
    print_table,
    size,
    when,
)
from mint.commands.shared.remote import Remote, UrlOption
from mint.commands.weights.checkpoints import print_checkpoints
from mint.watch.directory.files import METRICS, read_rows

app = typer.Typer(help="Manage the training runs of a service.", no_args_is_help=True)
RunArgument = Annotated[
    str, typer.Argument(help="A run id from `mint runs list`, or a prefix of one.")
]


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many of the newest.")] = 0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List your runs, newest first."""
    remote = Remote.running_or_embedded(url)
    answer = remote.get("/api/v1/training_runs", limit=limit, offset=offset)
    runs, total = answer["training_runs"], answer["cursor"]["total_count"]
    print_rows(
        runs,
        as_json,
        ["RUN", "TASK", "REWARD", "MODEL", "STATE", "AGE", "RUN DIRECTORY", "LAST CHECKPOINT"],
        _row,
        "There are no runs yet. `mint train` or a script creates one.",
    )
    if offset + len(runs) < total and not as_json:
        typer.echo(f"{total} in total. To see more: mint runs list --offset {offset + len(runs)}")


def _row(run: dict[str, Any]) -> list[str]:
    last = run["last_checkpoint"] or run["last_sampler_checkpoint"]
    about = run["user_metadata"] or {}
    reward = where = "-"
    if about.get("run_dir"):
        folder, here = Path(about["run_dir"]), Path.cwd()
        where = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
        rewards = [row.get("reward/mean") for row in read_rows(folder / METRICS)]
        if known := [value for value in rewards if value is not None]:
            reward = f"{known[-1]:.3f}"
    return [
        run["training_run_id"],
        about.get("task", "-"),
        reward,
        run["base_model"],
        _state(run.get("mint_status")),
        age(run["last_request_time"]),
        where,
        last["checkpoint_id"] if last else "-",
    ]


def _state(status: dict[str, Any] | None) -> str:
    """Return the state of a run, with the number of waiting operations."""
    if status is None:
        return "-"
    return f"{status['state']} ({status['waiting']})" if status["waiting"] else status["state"]


@app.command("status")
def show_load(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the load of a service: queue lengths, and the KV cache and memory of each engine."""
    load = Remote(url).get("/api/v1/mint/load")
    if as_json:
        print_json(load)
        return
    print_fields(
        {
            "ready": "yes" if load["ready"] else "loading",
            "operations waiting": load["operations_waiting"],
            "samples in progress": load["samples_in_progress"],
        }
    )
    print_table(
        ["ENGINE", "CALLS", "KV TOKENS", "RUNS", "SAMPLERS", "MEMORY"],
        map(_engine, load["engines"]),
        "No model is loaded.",
    )


def _engine(engine: dict[str, Any]) -> list[str]:
    numbers = {name: f"{value:,.0f}" for name, value in engine.items() if name != "model"}
    kv = (numbers.get(f"cache_tokens_{name}", "-") for name in ("used", "capacity"))
    held = (numbers.get(f"{name}_resident", "-") for name in ("runs", "samplers"))
    memory = size(engine.get("process_bytes"))
    return [engine["model"], numbers["calls"], " of ".join(kv), *held, memory]


@app.command("unload")
def unload_run(run: RunArgument, yes: YesOption = False, url: UrlOption = None) -> None:
    """End a run: its memory is freed, and it accepts no operations. Its checkpoints are kept."""
    remote = Remote.running_or_embedded(url)
    run = run_id(remote, run)
    if not yes:
        typer.confirm(f"{run}\nUnload this run? It cannot be trained further.", abort=True)
    remote.request("POST", "/api/v1/unload_model", json={"model_id": run})
    typer.echo(f"unloaded {run}")


@app.command("show")
def show_run(run: RunArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show one run and its checkpoints."""
    remote = Remote.running_or_embedded(url)
    run = run_id(remote, run)
    found = remote.get(f"/api/v1/training_runs/{run}")
    checkpoints = remote.get(f"/api/v1/training_runs/{run}/checkpoints")["checkpoints"]
    if as_json:
        print_json({**found, "checkpoints": checkpoints})
        return
    fields = {
        "run": found["training_run_id"],
        "model": found["base_model"],
        "rank": found["lora_rank"],
        "owner": found["model_owner"],
        "last used": when(found["last_request_time"]),
        "state": _state(found.get("mint_status")),
    }
    if reason := (found.get("mint_status") or {}).get("reason"):
        fields["waits for"] = reason
    print_fields(fields | (found["user_metadata"] or {}))
    print_checkpoints(checkpoints)
