"""``mint serve``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mint.catalog import Catalog, missing_from
from mint.commands.shared.options import HomeOption
from mint.commands.shared.output import Mistake
from mint.embedded import KEY_VARIABLE


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=FOLDER]",
            help="Load this base model at the start; with =FOLDER, serve that folder under the "
            "name. May be repeated. MINT_MODELS=NAME=FOLDER,... names more folders.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 0 chooses a free one. Default: 8000"
        ),
    ] = None,
    home: HomeOption = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of settings. Default: config.yaml in the home folder", dir_okay=False
        ),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text, or json: one object per line. Default: text")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="auto, exact, half or bfloat16. exact makes the logprobs of sampler and trainer "
            "agree to 1e-4. Default: auto, the fastest for the device"
        ),
    ] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Print the effective settings and exit.")
    ] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service. It speaks the Tinker wire protocol and the OpenAI API.

    Models listed by `mint models list`, and models on the hub, are loaded when first used. Flags
    override MINT_* variables, which override the configuration file.
    """
    from mint.service.admin.configuration import load

    names, aliases = parse_models(model)
    flags = {
        "home": home,
        "host": host,
        "port": port,
        "models": names or None,
        "aliases": aliases or None,
        "log_format": log_format,
        "precision": precision,
        "api_key": os.environ.pop(KEY_VARIABLE, None),
        "parent_pid": parent,
    }
    configuration = load(flags, config)
    settings = configuration.settings
    if check_config:
        for name, folder in settings.aliases.items():
            if missing := missing_from(folder.expanduser()):
                raise Mistake(f"aliases: {name}={folder}: {missing}. Correct or remove the entry.")
        typer.echo(configuration)
        return
    for name in settings.models:
        Catalog(aliases=settings.aliases, cache=settings.cache).locate(name)
    from mint.service.server import serve as serve_forever

    serve_forever(settings)


def parse_models(options: list[str] | None) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Return the names to load at the start, and the folders given with ``NAME=FOLDER``.

    >>> parse_models(["a/b", "c/d=models/c"])
    (('a/b', 'c/d'), {'c/d': PosixPath('models/c')})
    """
    names: list[str] = []
    aliases: dict[str, Path] = {}
    for option in options or []:
        name, _, folder = option.partition("=")
        if not name or option.endswith("="):
            raise typer.BadParameter(f"--model {option}: write NAME or NAME=FOLDER")
        names.append(name)
        if folder:
            aliases[name] = Path(folder)
    return tuple(names), aliases
