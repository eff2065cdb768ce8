"""``mint keys``: the API keys of a service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mint.commands.shared.options import HomeOption, load_settings, parse_duration
from mint.commands.shared.output import (
    JsonOption,
    Mistake,
    print_json,
    print_rows,
    print_table,
    when,
)

if TYPE_CHECKING:
    from mint.service.store.database import Store

_TIMES = ("created_at", "expires_at", "last_used_at", "revoked_at")
app = typer.Typer(help="Manage the API keys of a service.", no_args_is_help=True)
_count = partial(typer.Option, metavar="N")


@app.command("create")
def create_key(
    name: Annotated[
        str, typer.Argument(help="A name for the key, such as its purpose.")
    ] = "default",
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The user who owns what the key creates. Keys of one user share runs, "
            "checkpoints and speed; keys of different users do not see each other's.",
        ),
    ] = "local",
    prefix: Annotated[
        Literal["tml-", "sk-"], typer.Option(help="MinT's client requires sk-.")
    ] = "tml-",
    scope: Annotated[
        Literal["read", "sample", "train", "admin"],
        typer.Option(help="What the key may do. Each scope includes the previous ones."),
    ] = "train",
    expires: Annotated[str, typer.Option(help="Lifetime: 30d, 12h, or never.")] = "never",
    quota: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS", help="Limits such as runs=4,bytes=10GB; see `mint keys quota --help`."
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Create a key and print it. It cannot be shown again.

    Once a key exists, the service of this home folder requires one from every client. For another
    person, or a program that must not see your runs, create the key with a user of its own:
    `mint keys create ada --user ada`
    """
    from mint.service.access.auth import create_key as create
    from mint.service.access.quotas import change
    from mint.service.access.scopes import Scope

    pairs = [entry.partition("=") for entry in (quota or "").split(",") if entry.strip()]
    limits = change({}, {name.strip().replace("-", "_"): limit.strip() for name, _, limit in pairs})
    expires_at = None
    if expires != "never":
        try:
            expires_at = datetime.now(UTC) + timedelta(seconds=parse_duration(expires))
        except OverflowError as error:
            raise Mistake(
                "This expiry is too far in the future. For a key without expiry, write never."
            ) from error
        if expires_at <= datetime.now(UTC):
            raise Mistake("The key would expire at once. Write a lifetime such as 30d, or never.")
    for named in (name, user):
        if not named.strip() or not named.isprintable():
            raise Mistake(f"{named!r} is not a name. Write at least one letter, in one line.")
    store = _store(home)
    shared = [key.name for key in store.active_keys() if key.user == user]
    if any(key.name == name for key in store.all_keys()):
        raise Mistake(
            f"The name {name!r} is taken by an existing or revoked key. Choose another name."
        )
    typer.echo(create(store, name, user, prefix, Scope.parse(scope), expires_at, limits))
    if shared:
        typer.echo(
            f"It shares all runs and checkpoints with {', '.join(shared)}, as a key of the user "
            f"{user}. To separate them: mint keys revoke {name}, then mint keys create NAME "
            "--user NAME.",
            err=True,
        )


@app.command("list")
def list_keys(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the keys by name. The keys themselves are not stored."""
    rows: list[dict[str, Any]] = []
    for key in _store(home).all_keys():
        row = {field: getattr(key, field) for field in ("name", "user", "scope", "quota")}
        times = {name: getattr(key, name) for name in _TIMES}
        rows.append(row | {name: time and time.isoformat() for name, time in times.items()})
    print_rows(
        rows,
        as_json,
        ["NAME", "USER", "SCOPE", "CREATED", "EXPIRES", "LAST USED", "REVOKED"],
        lambda row: [row["name"], row["user"], row["scope"], *(when(row[name]) for name in _TIMES)],
        "There are no keys. The service accepts every client on this machine, and no others.",
    )


@app.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="A name from `mint keys list`.")],
    home: HomeOption = None,
) -> None:
    """Revoke a key. A running service rejects it within seconds."""
    store = _store(home)
    if not store.revoke_key(name):
        names = ", ".join(key.name for key in store.active_keys()) or "none"
        raise Mistake(f"There is no active key {name!r}. Active keys: {names}.")
    typer.echo(f"Revoked the key {name}.")
    if not store.active_keys():
        typer.echo(
            "It was the last active key: the service rejects every client until you create one."
        )


@app.command("quota")
def set_quota(
    name: Annotated[str, typer.Argument(help="A name from `mint keys list`.")],
    runs: Annotated[str | None, _count(help="Runs, except unloaded ones.")] = None,
    sessions: Annotated[str | None, _count(help="Sessions, except those with runs.")] = None,
    samplers: Annotated[
        str | None, _count(help="Samplers in memory; idle ones are moved to disk.")
    ] = None,
    checkpoints: Annotated[str | None, _count(help="Checkpoints.")] = None,
    tokens_in_flight: Annotated[str | None, _count(help="Tokens of samples in progress.")] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="Total size of checkpoints, such as 10GB"),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set and show the limits of a key. They take effect in a running service within seconds.

    Each limit is a number, `unlimited`, or `default` for the service's configured limit.
    """
    from mint.service.access.quotas import LIMITS, Quota, change, readable_bytes

    store, settings = _store(home), load_settings(home)
    key = next((key for key in store.all_keys() if key.name == name), None)
    if key is None:
        names = ", ".join(key.name for key in store.active_keys()) or "none"
        raise Mistake(f"There is no key {name!r}. Active keys: {names}.")
    limits = (runs, sessions, samplers, checkpoints, tokens_in_flight, size)
    typed = dict(zip(LIMITS, limits, strict=True))
    own = change(key.quota, {limit: text for limit, text in typed.items() if text is not None})
    store.set_quota(name, own)
    quota = vars(Quota.of(settings, own))
    if as_json:
        print_json(quota)
        return
    rows = []
    for limit, number in quota.items():
        shown = "unlimited"
        if number is not None:
            shown = readable_bytes(number) if limit == "bytes" else f"{number:,}"
        rows.append([limit, shown, "" if limit in own else "(the service's default)"])
    print_table(["QUOTA", "LIMIT", ""], rows)


def _store(home: Path | None) -> Store:
    from mint.service.store.database import Store

    settings = load_settings(home)
    store = Store(settings.store_url, settings.home)
    store.migrate()
    return store
