"""``mint checkpoints``: list, download, upload and delete the checkpoints of a service."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mint.commands.shared.names import find, find_weights, run_id
from mint.commands.shared.options import YesOption, parse_duration
from mint.commands.shared.output import (
    JsonOption,
    Mistake,
    print_fields,
    print_json,
    print_rows,
    size,
    transfer,
    when,
)
from mint.commands.shared.remote import Remote, UrlOption
from mint.commands.shared.transfers import fetch, fetch_archive, listed, resource
from mint.watch.durations import duration

app = typer.Typer(help="Manage the checkpoints of a service.", no_args_is_help=True)
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_PATH_HELP = (
    "A tinker:// path as printed by `list`, a run directory, a prefix of a run id, a checkpoint "
    "name, or RUN/NAME."
)
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)]


@app.command("list")
def list_checkpoints(
    run: Annotated[str | None, typer.Option(help="List only this run's checkpoints.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many of the newest.")] = 0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List your checkpoints, newest first."""
    remote = Remote.running_or_embedded(url)
    of_run = "" if run is None else f"/training_runs/{run_id(remote, run)}"
    answer = remote.get(f"/api/v1{of_run}/checkpoints", limit=limit, offset=offset)
    print_checkpoints(answer["checkpoints"], as_json)


def print_checkpoints(checkpoints: list[dict[str, Any]], as_json: bool = False) -> None:
    """Print checkpoints as a table, or as JSON."""
    print_rows(
        checkpoints,
        as_json,
        ["PATH", "TYPE", "SIZE", "SAVED", "EXPIRES", "PUBLIC"],
        lambda c: [
            c["tinker_path"],
            c["checkpoint_type"],
            size(c["size_bytes"]),
            when(c["time"]),
            when(c["expires_at"]),
            "yes" if c["public"] else "no",
        ],
        "There are no checkpoints.",
    )


@app.command("show")
def show_checkpoint(path: PathArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show one checkpoint: contents, size, expiry."""
    remote, where = find_weights(path, url)
    found = remote.request("POST", "/api/v1/weights_info", json={"tinker_path": where.uri})
    found = {"tinker_path": where.uri, **found, **listed(remote, where)}
    if as_json:
        print_json(found)
        return
    fields = {
        "path": where.uri,
        "model": found["base_model"],
        "rank": found["lora_rank"],
        "trains": ", ".join(p for p in ("attn", "mlp", "unembed") if found.get(f"train_{p}")),
        "size": size(found.get("size_bytes")),
        "saved": when(found.get("time")),
        "expires": when(found.get("expires_at")),
        "public": "yes" if found.get("public") else "no",
    }
    print_fields(fields | (found.get("user_metadata") or {}))


# ---- files ---------------------------------------------------------------------------------------


@app.command("download")
def download(
    path: PathArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A new folder, or a file name ending in .tar.gz. Default: RUN_KIND_NAME.tar.gz",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    url: UrlOption = None,
) -> None:
    """Download a checkpoint as an archive or a folder. `upload` accepts both."""
    remote, where = find_weights(path, url)
    target = output or Path(f"{where.run_id}_{where.kind}_{where.name}.tar.gz".replace(":", "-"))
    is_archive = target.name.endswith(_ARCHIVES)
    is_empty = not is_archive and target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty and not force:
        raise Mistake(
            f"{target} already exists. Choose another with --output, or overwrite its files with "
            "--force."
        )
    if is_archive:
        fetch_archive(remote, where, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as scratch:
            fetch(remote, where, Path(scratch))
            target.mkdir(exist_ok=True)
            for file in Path(scratch).iterdir():
                file.replace(target / file.name)
    typer.echo(target)


@app.command("upload")
def upload(
    file: Annotated[
        Path, typer.Argument(exists=True, help="A .tar.gz archive, or a folder in PEFT format.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Checkpoint name. Default: the name it was saved under.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Base model. Default: the one it was trained on.")
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload a checkpoint to a service, and print its new path."""
    remote = Remote.running_or_embedded(url)
    with (
        _packed(file) as archive,
        transfer() as progress,
        progress.open(archive, "rb", description=file.name) as content,
    ):
        answer = remote.request(
            "POST",
            "/api/v1/checkpoints/upload",
            data={k: v for k, v in {"name": name, "base_model": base_model}.items() if v},
            files={"file": (file.name, content, "application/gzip")},
        )
    if as_json:
        print_json(answer)
    else:
        typer.echo(answer["path"])


@contextmanager
def _packed(file: Path) -> Iterator[Path]:
    """Yield an archive: the file itself, or a temporary one of a folder."""
    if not file.is_dir():
        yield file
        return
    from mint.service.checkpoints.archives import pack
    from mint.service.checkpoints.peft import CONFIG

    if not (file / CONFIG).exists():
        raise Mistake(f"{file} has no {CONFIG}. Pass the folder that contains the adapter.")
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
        archive.writelines(
            pack(each.open("rb") for each in sorted(file.iterdir()) if each.is_file())
        )
        archive.flush()
        yield Path(archive.name)


# ---- managing ------------------------------------------------------------------------------------


@app.command("delete")
def delete(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help=_PATH_HELP)],
    yes: YesOption = False,
    url: UrlOption = None,
) -> None:
    """Delete checkpoints permanently."""
    named = [find_weights(path, url)[1] for path in paths]
    if not yes:
        listed = "\n".join(where.uri for where in named)
        typer.confirm(f"{listed}\nDelete permanently?", abort=True)
    for path, where in zip(paths, named, strict=True):
        # Found again: an embedded service ends when that of another run directory starts.
        find(path, url).remote.request("DELETE", resource(where))
        typer.echo(f"deleted {where.uri}")


@app.command("prune")
def prune(
    older_than: Annotated[
        str | None, typer.Option(help="Only those older than this, such as 30d or 12h.")
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(min=0, help="Keep the newest N of each kind of a run. Default: 1"),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Keep this name, or pattern such as 'best*', too. May be repeated."
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only those of this run.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List them, delete none.")] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete your old checkpoints permanently. Public ones and those in use are kept."""
    if older_than is None and keep_last is None:
        raise Mistake("Give --older-than 30d, --keep-last 3, or both. Try it with --dry-run.")
    remote = Remote(url)
    rule: dict[str, Any] = {
        "older_than_s": parse_duration(older_than) if older_than else 0,
        "keep_last": 1 if keep_last is None else keep_last,
        "keep": keep or [],
        "run_id": run_id(remote, run) if run else None,
    }

    def ask(dry_run: bool) -> list[dict[str, Any]]:
        body = {**rule, "dry_run": dry_run}
        answer = remote.request("POST", "/api/v1/mint/checkpoints/prune", json=body)
        return list(answer["checkpoints"])

    found = ask(dry_run=True)
    if found and not dry_run:
        if not yes:
            print_checkpoints(found)
            typer.confirm(f"Delete these {len(found)} permanently?", abort=True)
        found = ask(dry_run=False)
    if as_json:
        print_json(found)
        return
    if dry_run and found:
        print_checkpoints(found)
    freed = sum(checkpoint["size_bytes"] for checkpoint in found)
    number = f"{len(found)} checkpoint{'' if len(found) == 1 else 's'}"
    typer.echo(f"{'would delete' if dry_run else 'deleted'} {number}, {size(freed)}")


@app.command("publish")
def publish(
    path: PathArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Make it private again.")] = False,
    url: UrlOption = None,
) -> None:
    """Make a checkpoint readable with every API key of the service."""
    remote, where = find_weights(path, url)
    remote.request("DELETE" if undo else "POST", f"{resource(where)}/publish")
    typer.echo(f"{where.uri} is {'private' if undo else 'public'}")


@app.command("ttl")
def set_ttl(
    path: PathArgument,
    time: Annotated[
        str, typer.Argument(help="Time from now: 7d, 12h or seconds, at least 1h; or never.")
    ],
    url: UrlOption = None,
) -> None:
    """Set when a checkpoint expires and is deleted."""
    limit = None if time == "never" else parse_duration(time)
    remote, where = find_weights(path, url)
    remote.request("PUT", f"{resource(where)}/ttl", json={"ttl_seconds": limit})
    expiry = "never expires" if limit is None else f"expires in {duration(limit)}"
    typer.echo(f"{where.uri} {expiry}")
