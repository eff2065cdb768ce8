"""``mint keys``: who may use a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import HomeOption, settings_of
from .output import JsonOption, Mistake, print_json, print_table, when

if TYPE_CHECKING:
    from mint.service.store import Store

app = typer.Typer(help="The API keys of a service.", no_args_is_help=True)


@app.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    user: Annotated[str, typer.Option(help="Whose runs and checkpoints it reaches.")] = "local",
    prefix: Annotated[
        Literal["tml-", "sk-"], typer.Option(help="sk- is for MinT's own client.")
    ] = "tml-",
    home: HomeOption = None,
) -> None:
    """Make a key and print it. It is shown this once.

    From then on, the service of this home folder asks every caller for a key.
    """
    from mint.service.auth import create_key as create

    store = _store(home)
    if any(key.name == name for key in store.all_keys()):
        raise Mistake(f"There is, or was, a key named {name!r}. Choose another: --name NAME")
    typer.echo(create(store, name, user, prefix))


@app.command("list")
def list_keys(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the keys: their names, never the keys themselves."""
    rows = [
        {
            "name": key.name,
            "user": key.user,
            "created_at": key.created_at.isoformat(),
            "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
        }
        for key in _store(home).all_keys()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["NAME", "USER", "CREATED", "REVOKED"],
            (
                [
                    str(row["name"]),
                    str(row["user"]),
                    when(row["created_at"]),
                    when(row["revoked_at"]),
                ]
                for row in rows
            ),
            "There are no keys: on this machine everybody may use the service, others may not.",
        )


@app.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="As `mint keys list` shows it.")],
    home: HomeOption = None,
) -> None:
    """End a key. A running service refuses it within seconds."""
    store = _store(home)
    if not store.revoke_key(name):
        names = ", ".join(key.name for key in store.all_keys() if key.revoked_at is None) or "none"
        raise Mistake(f"There is no key {name!r} in force. The keys in force are: {names}.")
    typer.echo(f"The key {name} is revoked.")
    if not store.active_keys():
        typer.echo("It was the last one: on this machine, every caller is accepted again.")


def _store(home: Path | None) -> Store:
    from mint.service.store import Store

    settings = settings_of(home)
    store = Store(settings.store_url, settings.home)
    store.migrate()
    return store
