"""``mint watch``: the dashboard."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from mint.commands.shared.output import Mistake
from mint.watch.dashboard.run_index import DEMO, RunIndex

DEFAULT_PORT = 8265


def watch(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR…] | bundle DIR…",
            help="Run directories, or folders that contain some. Default: runs",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help=f"Port to listen on; 0 chooses a free one. Default: {DEFAULT_PORT}",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other than loopback requires --key.")
    ] = "127.0.0.1",
    key: Annotated[
        str | None, typer.Option(envvar="MINT_WATCH_KEY", help="Require this key from visitors.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a recorded run.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="bundle: the HTML file or the folder to write."),
    ] = None,
    size: Annotated[
        float,
        typer.Option(min=0.1, help="bundle: include at most this many megabytes of rollouts."),
    ] = 20.0,
) -> None:
    """Show in the browser whether runs are learning and, if not, why.

    `mint watch runs` serves a live page of the runs in a folder. `mint watch bundle runs/x` writes
    the same page, with the run's data, as one HTML file that opens without a server.
    """
    names = directories or []
    if names[:1] == ["bundle"]:
        _bundle(names[1:], output, size)
    elif output is not None:
        raise Mistake("--output is for bundles. Type: mint watch bundle DIR --output FILE")
    else:
        _serve(_folders(names, demo), host, port, key, demo)


def _folders(names: list[str], demo: bool) -> list[Path]:
    folders = [Path(name) for name in names or ([] if demo else ["runs"])]
    for folder in folders:
        if not folder.is_dir():
            raise Mistake(
                f"There is no folder {folder}. Name a run directory, or type `mint watch --demo` "
                "to see a recorded run."
            )
    return [*folders, *([DEMO] if demo else [])]


def _serve(folders: list[Path], host: str, port: int | None, key: str | None, demo: bool) -> None:
    import uvicorn

    from mint.service.admin.settings import is_loopback
    from mint.watch.dashboard.server import Watch, create_app

    if not key and not is_loopback(host):
        raise Mistake(
            f"{host} is reachable from other machines, so anyone could read your runs. "
            "Require a key: --key WORD, or listen on this machine only: --host 127.0.0.1"
        )
    sock = _bind(host, port)
    app = create_app(Watch(RunIndex(folders), demo=demo), key=key or None, hosts=[host])
    at, number = sock.getsockname()[:2]
    shown = f"[{at}]" if ":" in at else at
    print(f"mint watch is ready at http://{shown}:{number}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[sock])


def _bind(host: str, port: int | None) -> socket.socket:
    """Listen before the address is printed. Without a port, the default or any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [DEFAULT_PORT, 0] if port is None else [port]:
        try:
            return socket.create_server((host, number), family=family, backlog=128)
        except OSError as error:
            refused = error
    raise Mistake(
        f"cannot listen on {host}:{number}: {os.strerror(refused.errno or 0)}. Choose another "
        "with --port, or --port 0 for any free one."
    ) from None


def _bundle(names: list[str], output: Path | None, size: float) -> None:
    from mint.watch.dashboard.bundle import write_bundle

    if not names:
        raise Mistake("Name a run directory: mint watch bundle DIR")
    folders = _folders(names, demo=False)
    target = output or Path(f"{folders[0].resolve().name}.html")
    if target.suffix.lower() not in (".html", ".htm") or target.is_dir():
        target /= "index.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(
            f"cannot create the folder {target.parent}: {os.strerror(error.errno or 0)}. Name "
            "another file or folder: --output NAME.html"
        ) from None
    report = write_bundle(folders, target, int(size * 1024 * 1024))
    typer.echo(f"mint: wrote {target} ({report})")
