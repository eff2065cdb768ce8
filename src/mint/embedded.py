"""The service that a script starts for itself when it is given no URL.

It is the same ``mint serve``, run as a child process on a free port of this machine, with a key
that only this process knows. There is one per process; it ends when the process ends, however
that happens: the child watches its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from mint.home import default_home

START_SECONDS = 120.0
STOP_SECONDS = 5.0
KEPT_LOGS = 100
"""The number of log files of embedded services that are kept in a home folder."""
KEY_VARIABLE = "MINT_EMBEDDED_KEY"
LOG_VARIABLE = "MINT_LOG_FILE"

_READY = re.compile(rb"mint is ready at (http://\S+)")
_lock = threading.Lock()
_running: EmbeddedService | None = None


class EmbeddedServiceError(RuntimeError):
    """The embedded service did not start. The message has the end of its log."""


@dataclass(frozen=True)
class EmbeddedService:
    """A running service: its URL, the key it accepts, and the file it logs to."""

    url: str
    key: str
    log: Path
    process: subprocess.Popen[bytes]
    parent: int
    home: Path

    @property
    def alive(self) -> bool:
        """Whether the child still runs. A fork of this process cannot check, and assumes so."""
        return os.getpid() != self.parent or self.process.poll() is None


def named_url(url: str | None) -> str | None:
    """Return the URL that was passed, or that is set in the environment. Raises ValueError."""
    found = url or os.environ.get("MINT_BASE_URL") or os.environ.get("TINKER_BASE_URL")
    if found and not found.lower().startswith(("http://", "https://")):
        raise ValueError(f"{found!r} is not the URL of a service. Write http://HOST:PORT")
    return found


def named_key(key: str | None) -> str | None:
    """Return the API key that was passed, or that is set in the environment. Raises ValueError."""
    found = key or os.environ.get("MINT_API_KEY") or os.environ.get("TINKER_API_KEY")
    found = found.strip() if found else None  # a key that was read from a file may end a line
    if found and not (found.isascii() and found.isprintable()):
        raise ValueError("The API key has a character that no key has. Copy it again.")
    return found


def is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bypass_proxies(url: str) -> None:
    """Except a service on this machine from the proxies in the environment, which cannot reach it.

    The clients' HTTP libraries read the same variables.
    """
    proxies, host = getproxies_environment(), urlsplit(url).hostname or ""
    if proxies and is_this_machine(url) and not proxy_bypass(host):
        excepted = ",".join(filter(None, (proxies.get("no"), host)))
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = excepted


def embedded_service(home: Path | None = None) -> EmbeddedService:
    """Return the service of this process, and start it if there is none.

    With ``home``, a service of another home folder is replaced by one of this.
    """
    global _running
    with _lock:
        place = (home or default_home()).resolve()
        old = _running
        if old is not None and home is not None and old.home != place:
            _running = None
            _end(old.process)
        if _running is None or not _running.alive:
            _running = _start(place)
            bypass_proxies(_running.url)
            threading.Thread(target=_report_end, args=(_running,), daemon=True).start()
        return _running


def embedded_home(url: str) -> Path | None:
    """Return the home folder of the service at a URL, if this process started it."""
    service = _running
    return service.home if service is not None and service.url == url.rstrip("/") else None


def embedded_service_ended(url: str) -> bool:
    """Return whether the service at a URL is one that this process started, and has ended since."""
    service = _running
    return service is not None and service.url == url.rstrip("/") and not service.alive


def stop_embedded_service() -> None:
    """End the service that this process started, if any. Also runs at exit."""
    global _running
    with _lock:
        service, _running = _running, None
        if service is not None and service.parent == os.getpid():
            _end(service.process)


def _start(home: Path) -> EmbeddedService:
    key = f"tml-{secrets.token_urlsafe(24)}"
    log = _new_log(home)
    command = [sys.executable, "-m", "mint.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--home", str(home), "--parent", str(os.getpid())]
    environment = {**os.environ, KEY_VARIABLE: key, LOG_VARIABLE: str(log), "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the script, which then ends the service
        )
    try:
        url = _wait_until_ready(process, log)
    except BaseException:
        _end(process)
        raise
    # As with notebooks, the link has the key of this one service, so that the page can chat.
    line = f"mint: embedded service at {url} (dashboard: {url}/watch#key={key}, log: {log})"
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed or full
        print(line, file=sys.stderr, flush=True)
    return EmbeddedService(url, key, log, process, parent=os.getpid(), home=home)


def _new_log(home: Path) -> Path:
    """Create a log that only this user can read, and delete the oldest ones.

    Services in several containers may start in the same second with the same process id.
    """
    folder, started = home / "logs", time.strftime("%Y%m%d-%H%M%S")
    log = folder / f"embedded-{started}-{os.getpid()}-{secrets.token_hex(3)}.log"
    try:
        for each in (home, folder):
            each.mkdir(0o700, parents=True, exist_ok=True)
        for old in sorted(folder.glob("embedded-*.log"))[: 1 - KEPT_LOGS]:
            old.unlink(missing_ok=True)
        log.touch(0o600)
    except OSError as error:
        raise EmbeddedServiceError(
            f"The embedded service cannot write to its home folder: {error}. "
            "Set MINT_HOME to a folder that you can write to."
        ) from error
    return log


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        code = process.poll()
        if ready := _READY.search(log.read_bytes()):
            return ready[1].decode()
        if code is not None:
            raise EmbeddedServiceError(_failure(f"ended with exit code {code}", log))
        time.sleep(0.02)
    raise EmbeddedServiceError(_failure(f"was not ready after {START_SECONDS:.0f} s", log))


def _failure(what: str, log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-15:] or ["(empty)"]
    return (
        f"The embedded service {what}. The last lines of its log, {log}:\n"
        + "".join(f"  | {line}\n" for line in lines)
        + "To start a service in the foreground, type: mint serve --port 8000\n"
        "To use a service that runs elsewhere, set MINT_BASE_URL."
    )


def _report_end(service: EmbeddedService) -> None:
    """Report that the child has ended by itself: the SDK would keep trying to reach it."""
    code = service.process.wait()
    if _running is service:
        print("mint: " + _failure(f"ended with exit code {code}", service.log), file=sys.stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # it ignores SIGTERM
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _renew_lock() -> None:
    """Replace the lock in a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
atexit.register(stop_embedded_service)
