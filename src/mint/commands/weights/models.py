"""``mint models``: the base models of this machine, and names for folders."""

from pathlib import Path
from typing import Annotated

import typer

from mint.catalog import missing_from
from mint.commands.shared.options import HomeOption, load_catalog, load_settings
from mint.commands.shared.output import JsonOption, Mistake, print_rows
from mint.home import CONFIG_FILE

app = typer.Typer(help="Manage the base models on this machine.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="The model's name, as in base_model=NAME.")]


@app.command("list")
def list_models(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the base models that are available offline."""
    catalog = load_catalog(home)
    rows = []
    for name in catalog.names():
        folder = catalog.aliases.get(name)
        source = "alias" if folder else "package"
        rows.append({"name": name, "source": source, "folder": str(folder) if folder else None})
    print_rows(
        rows,
        as_json,
        ["MODEL", "FROM"],
        lambda row: [row["name"], row["folder"] or "installed weights package"],
        "There are no models. Add one: mint models add NAME FOLDER",
    )


@app.command("get")
def get_model(name: NameArgument, home: HomeOption = None) -> None:
    """Find a base model, downloading or converting it if needed, and print its folder."""
    typer.echo(load_catalog(home).locate(name))


@app.command("untie")
def untie_model(
    name: NameArgument,
    to: Annotated[Path, typer.Option("--to", help="The folder to create.", file_okay=False)],
    home: HomeOption = None,
) -> None:
    """Copy a base model with an untied output layer, for programs that merge adapters.

    `mint export --merge` does not need it.
    """
    from mint.commands.weights.export import copy_tokenizer, hide_progress_bars, new_folder
    from mint.engine.adapters.merge import untie

    source = load_catalog(home).locate(name)
    hide_progress_bars()
    with new_folder(to.expanduser()) as draft:
        if not untie(source, draft):
            raise Mistake(f"The output layer of {name} is not tied to its embedding: {source}")
        copy_tokenizer(source, draft)
    typer.echo(str(to))


@app.command("add")
def add_model(
    name: NameArgument,
    folder: Annotated[Path, typer.Argument(help="A folder with config, weights and tokenizer.")],
    home: HomeOption = None,
) -> None:
    """Add a model under a name. The name is stored in the home folder's config.yaml."""
    from mint.service.admin.aliases import write_aliases

    folder = folder.expanduser().resolve()
    if missing := missing_from(folder):
        raise Mistake(f"{folder} is not a model folder: {missing}.")
    aliases, file = _aliases(home)
    write_aliases(file, {**aliases, name: folder})
    typer.echo(f"Added {name}: {folder}. Restart running services to use it.")


@app.command("remove")
def remove_model(name: NameArgument, home: HomeOption = None) -> None:
    """Remove a name that was added. The folder is not changed."""
    from mint.service.admin.aliases import write_aliases

    aliases, file = _aliases(home)
    if name not in aliases:
        known = ", ".join(aliases) or "none"
        raise Mistake(f"There is no model {name!r} in {file}. Models there: {known}.")
    write_aliases(file, {other: path for other, path in aliases.items() if other != name})
    typer.echo(f"Removed {name}. Running services keep it until they restart.")


def _aliases(home: Path | None) -> tuple[dict[str, Path], Path]:
    """Return the names in the configuration of a home folder, and its file."""
    from mint.service.admin.aliases import read_aliases

    file = load_settings(home).home / CONFIG_FILE
    return read_aliases(file), file
