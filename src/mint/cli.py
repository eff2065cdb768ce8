"""The ``mint`` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mint import __version__
from mint.catalog import Catalog, ModelNotFound
from mint.embedded import KEY_VARIABLE
from mint.embedded import home as default_home

app = typer.Typer(
    name="mint",
    help="RL post-training that you run yourself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models = typer.Typer(help="The base models of this machine.", no_args_is_help=True)
keys = typer.Typer(help="The API keys of a service.", no_args_is_help=True)
app.add_typer(models, name="models")
app.add_typer(keys, name="keys")

HomeOption = Annotated[
    Path | None,
    typer.Option(help="Folder of all state. Default: MINT_HOME, or ~/.mint", file_okay=False),
]

ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME[=FOLDER]",
        help="Load this base model at the start; with =FOLDER, serve that folder under the name. "
        "May be repeated. Also: MINT_MODELS, separated by commas.",
        show_default=False,
    ),
]


@app.command()
def serve(
    model: ModelOptions = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    home: HomeOption = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service. It speaks the Tinker wire protocol.

    Any model that `mint models list` shows, or that the hub has, loads when it is first used.
    """
    names, aliases = parse_models(model)
    for name in names:
        Catalog(aliases=aliases).locate(name)
    from mint.service.server import Settings
    from mint.service.server import serve as serve_forever

    serve_forever(
        Settings(
            home=home or default_home(),
            host=host,
            port=port,
            models=names,
            aliases=aliases,
            api_key=os.environ.pop(KEY_VARIABLE, None),
            parent_pid=parent,
        )
    )


def parse_models(options: list[str] | None) -> tuple[tuple[str, ...], dict[str, Path]]:
    """The names to load at the start, and the folders given with ``NAME=FOLDER``.

    >>> parse_models(["a/b", "c/d=models/c"])
    (('a/b', 'c/d'), {'c/d': PosixPath('models/c')})

    The variable ``MINT_MODELS`` names more folders, which are loaded when they are first used.
    """
    names: list[str] = []
    aliases = _aliases_of(os.environ.get("MINT_MODELS", "").split(","))
    for option in options or []:
        name, _, folder = option.partition("=")
        if not name or option.endswith("="):
            raise typer.BadParameter(f"--model {option}: write NAME or NAME=FOLDER")
        names.append(name)
        if folder:
            aliases[name] = Path(folder)
    return tuple(names), aliases


def _aliases_of(entries: list[str]) -> dict[str, Path]:
    aliases = {}
    for entry in filter(None, map(str.strip, entries)):
        name, _, folder = entry.partition("=")
        if not name or not folder:
            raise typer.BadParameter(f"MINT_MODELS has {entry!r}: write NAME=FOLDER,NAME=FOLDER")
        aliases[name] = Path(folder)
    return aliases


@models.command("list")
def list_models() -> None:
    """Show the base models that can be used without the hub."""
    _, aliases = parse_models(None)
    for name in Catalog(aliases=aliases).names():
        typer.echo(name)


@models.command("get")
def get_model(name: Annotated[str, typer.Argument(help="As in base_model=NAME.")]) -> None:
    """Find, convert or download a base model now, and print its folder."""
    _, aliases = parse_models(None)
    typer.echo(Catalog(aliases=aliases).locate(name))


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    user: Annotated[str, typer.Option(help="Whose runs and checkpoints it reaches.")] = "local",
    home: HomeOption = None,
) -> None:
    """Make a key and print it. It is shown this once.

    From then on, the service of this home folder asks every caller for a key.
    """
    from mint.service.auth import create_key as create
    from mint.service.server import Settings
    from mint.service.store import Store

    settings = Settings(home=home or default_home())
    store = Store(settings.store_url, settings.home)
    store.migrate()
    typer.echo(create(store, name, user))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mint {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line. A user's mistake gives one message and exit code 2."""
    try:
        app(prog_name="mint")
    except (ModelNotFound, ValueError, OSError) as error:
        print(f"mint: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if not isinstance(end.code, str):
            raise
        print(end.code, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
