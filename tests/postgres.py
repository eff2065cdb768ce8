"""A PostgreSQL server of the tests' own: Debian's programs, a socket in a folder, no network."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.needs import need_postgres

_USERS = ("postgres", "nobody")  # root may not run it
_OPTIONS = (
    *("listen_addresses=", "fsync=off", "max_connections=200"),
    "timezone=Asia/Kolkata",  # times are UTC, wherever the database is
)


@dataclass
class Postgres:
    """A server on a socket, and as many databases in it as tests ask for."""

    folder: Path
    programs: Path
    identity: dict[str, Any]
    numbers: Iterator[int] = field(default_factory=itertools.count)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = [f"-c{option}" for option in _OPTIONS]
        where = ["-D", str(self.folder / "data"), "-k", str(self.folder)]
        self.process = subprocess.Popen(
            [str(self.programs / "postgres"), *where, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.identity,
        )
        is_ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder)]
        while subprocess.run(is_ready, check=False).returncode:
            assert self.process.poll() is None, "PostgreSQL did not start"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: connections are cut, and what is committed stays."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()

    def database(self) -> str:
        """Return the URL of a new, empty database."""
        import psycopg

        name = f"mint{next(self.numbers)}"
        with psycopg.connect(f"{self._url('postgres')}", autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://mint@/{database}?host={self.folder}"


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server with an empty cluster, for as long as the block runs."""
    programs = need_postgres()
    folder = Path(tempfile.mkdtemp(prefix="mint-postgres-"))
    identity: dict[str, Any] = {"cwd": folder}
    if os.getuid() == 0:
        known = {entry.pw_name for entry in pwd.getpwall()}
        user = pwd.getpwnam(next(name for name in _USERS if name in known))
        identity |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)
    made = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "mint", "-A", "trust"]
    made += ["--no-sync", "--no-instructions", "-E", "UTF8", "--locale=C.UTF-8"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, **identity)
    server = Postgres(folder, programs, identity)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
