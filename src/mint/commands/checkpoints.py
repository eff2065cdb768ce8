"""``mint checkpoints``: named copies of adapters, on a service and as files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer

from .output import (
    JsonOption,
    Mistake,
    print_fields,
    print_json,
    print_table,
    size,
    transfer,
    when,
)
from .remote import TIMEOUT, Remote, UrlOption

if TYPE_CHECKING:
    from mint.service.checkpoints import CheckpointPath

app = typer.Typer(help="The checkpoints of a service.", no_args_is_help=True)
PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="tinker://RUN/KIND/NAME, as `list` shows it.")
]


@app.command("list")
def list_checkpoints(
    run: Annotated[str | None, typer.Option(help="Only those of this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Skip the newest so many.")] = 0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show your checkpoints, the newest first."""
    remote = Remote(url)
    if run is not None:
        answer = remote.get(f"/api/v1/training_runs/{run}/checkpoints")
    else:
        answer = remote.get("/api/v1/checkpoints", limit=limit, offset=offset)
    if as_json:
        print_json(answer["checkpoints"])
    else:
        print_checkpoints(answer["checkpoints"])


def print_checkpoints(checkpoints: list[dict[str, Any]]) -> None:
    print_table(
        ["PATH", "TYPE", "SIZE", "SAVED", "EXPIRES", "PUBLIC"],
        (
            [
                c["tinker_path"],
                c["checkpoint_type"],
                size(c["size_bytes"]),
                when(c["time"]),
                when(c["expires_at"]),
                "yes" if c["public"] else "no",
            ]
            for c in checkpoints
        ),
        "There are no checkpoints.",
    )


@app.command("show")
def show_checkpoint(path: PathArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show one checkpoint: what it holds, its size, until when it stays."""
    remote, where = Remote(url), _parse(path)
    found = remote.request("POST", "/api/v1/weights_info", json={"tinker_path": where.uri})
    found = {"tinker_path": where.uri, **found, **_listed(remote, where)}
    if as_json:
        print_json(found)
        return
    fields = {
        "path": where.uri,
        "model": found["base_model"],
        "rank": str(found["lora_rank"]),
        "trains": ", ".join(p for p in ("attn", "mlp", "unembed") if found.get(f"train_{p}")),
        "size": size(found.get("size_bytes")),
        "saved": when(found.get("time")),
        "expires": when(found.get("expires_at")),
        "public": "yes" if found.get("public") else "no",
    }
    print_fields(
        fields | {key: str(value) for key, value in (found.get("user_metadata") or {}).items()}
    )


def _listed(remote: Remote, where: CheckpointPath) -> dict[str, Any]:
    """What the list of the run says; nothing when the run is somebody else's."""
    try:
        answer = remote.get(f"/api/v1/training_runs/{where.run_id}/checkpoints")
    except Mistake:
        return {}
    same = (c for c in answer["checkpoints"] if c["tinker_path"] == where.uri)
    return dict(next(same, {}))


# ---- files ---------------------------------------------------------------------------------------


@app.command("download")
def download(
    path: PathArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: RUN_KIND_NAME.tar.gz")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    url: UrlOption = None,
) -> None:
    """Write a checkpoint to a file that `upload` takes, on this service or another."""
    remote, where = Remote(url), _parse(path)
    target = output or Path(f"{where.run_id}_{where.kind}_{where.name}.tar.gz".replace(":", "-"))
    if target.exists() and not force:
        raise Mistake(f"{target} exists. Choose another with --output, or replace it with --force.")
    link = remote.redirect(f"{_resource(where)}/archive")
    total = _listed(remote, where).get("size_bytes")
    with (
        remote.failures(),
        httpx.stream("GET", link, timeout=TIMEOUT, follow_redirects=True) as answer,
    ):
        remote.check(answer)
        _save(answer, target, total)
    typer.echo(target)


def _save(answer: httpx.Response, target: Path, total: int | None) -> None:
    """Write an answer to a file that appears only when it is whole."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file, transfer() as progress:
            task = progress.add_task(target.name, total=total)
            for part in answer.iter_bytes(1024 * 1024):
                file.write(part)
                progress.advance(task, len(part))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@app.command("upload")
def upload(
    file: Annotated[
        Path, typer.Argument(exists=True, help="A .tar.gz archive, or a folder in PEFT format.")
    ],
    name: Annotated[str | None, typer.Option(help="Default: the name it was saved with.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Default: the model it was trained from.")
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a checkpoint to a service, and print its path there."""
    remote = Remote(url)
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
    """An archive as it is, or one of a folder's files for as long as it is needed."""
    if not file.is_dir():
        yield file
        return
    from mint.service.adapters import CONFIG
    from mint.service.archives import pack

    if not (file / CONFIG).exists():
        raise Mistake(f"{file} has no {CONFIG}. Name the folder that holds the adapter's files.")
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
        archive.writelines(pack(file))
        archive.flush()
        yield Path(archive.name)


# ---- managing ------------------------------------------------------------------------------------


@app.command("delete")
def delete(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: UrlOption = None,
) -> None:
    """Delete checkpoints for good."""
    remote, named = Remote(url), [_parse(path) for path in paths]
    if not yes:
        listed = "\n".join(where.uri for where in named)
        typer.confirm(f"{listed}\nDelete for good?", abort=True)
    for where in named:
        remote.request("DELETE", _resource(where))
        typer.echo(f"deleted {where.uri}")


@app.command("publish")
def publish(
    path: PathArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Make it private again.")] = False,
    url: UrlOption = None,
) -> None:
    """Let every key of the service read a checkpoint."""
    where = _parse(path)
    Remote(url).request("DELETE" if undo else "POST", f"{_resource(where)}/publish")
    typer.echo(f"{where.uri} is {'private' if undo else 'public'}")


@app.command("ttl")
def set_ttl(
    path: PathArgument,
    seconds: Annotated[str, typer.Argument(help="From now, at least 3600; or: never")],
    url: UrlOption = None,
) -> None:
    """Say when a checkpoint is deleted."""
    if seconds != "never" and not seconds.isdigit():
        raise Mistake(f"{seconds!r} is neither a number of seconds nor the word never.")
    where = _parse(path)
    limit = None if seconds == "never" else int(seconds)
    Remote(url).request("PUT", f"{_resource(where)}/ttl", json={"ttl_seconds": limit})
    typer.echo(f"{where.uri} {'stays' if limit is None else f'is deleted in {limit} s'}")


def _parse(text: str) -> CheckpointPath:
    from mint.service.checkpoints import CheckpointPath

    return CheckpointPath.parse(text)


def _resource(where: CheckpointPath) -> str:
    return f"/api/v1/training_runs/{where.run_id}/checkpoints/{where.checkpoint_id}"
