"""A live service for tests: a real process, reached over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from mint.service.access.auth import create_key
from mint.service.store.database import Store
from tests.postgres import Postgres, postgres
from tests.processes import arguments_of, children_of
from tests.tiny import build_model

MODEL, SMOLLM2 = "tiny/llama", "HuggingFaceTB/SmolLM2-135M-Instruct"
USERS = ("ada", "eve", "bob", "mallory", "carol", "oscar")
"""Of the service with keys. A test that counts a user's objects has one of its own."""
_RUN_WITH_SETTINGS = """
import sys
from pathlib import Path
from mint.service.server import Settings, serve
serve(eval(sys.argv[1]))
"""


@dataclass
class LiveService:
    """A running service: where it answers, its home folder and its process."""

    base_url: str
    home: Path
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.base_url.rsplit(":", 1)[1])

    def stop(self) -> int:
        """End it politely and return its exit status."""
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def child_pids(self) -> list[int]:
        return children_of(self.process.pid)

    def worker_pids(self) -> list[int]:
        """The engine workers that this service started."""
        return [pid for pid in self.child_pids() if _is_worker(pid)]


def _is_worker(pid: int) -> bool:
    """Whether a child runs a worker's program, or did until it ended a moment ago."""
    try:
        arguments = arguments_of(pid)
    except ProcessLookupError:
        return False
    return not arguments or "mint.engine.worker" in arguments


def start_service(
    home: Path,
    model: Path | None,
    port: int = 0,
    precision: str = "exact",
    within: Sequence[str] = (),
    **settings: Any,
) -> LiveService:
    """Start a service and wait for its ready line. Without ``settings``: by the command line.

    Its precision is ``exact`` unless a test wants another: tests compare numbers. ``within`` is a
    command that starts it, such as a sandbox's.
    """
    home.mkdir(parents=True, exist_ok=True)
    if settings:
        aliases = {MODEL: Path(model)} if model else {}
        arguments = {"home": home, "port": port, "precision": precision, "aliases": aliases}
        arguments |= settings
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        command = [sys.executable, "-c", _RUN_WITH_SETTINGS, f"Settings({text})"]
        command[-1] = command[-1].replace("PosixPath", "Path")
    else:
        command = [sys.executable, "-m", "mint.cli", "serve", "--port", str(port)]
        command += ["--home", str(home), "--model", f"{MODEL}={model}", "--precision", precision]
    with open(home / "service.log", "ab") as log:
        process = subprocess.Popen(
            [*within, *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
    assert process.stdout is not None
    ready = process.stdout.readline()
    if not ready.startswith("mint is ready at "):
        process.wait(30)
        raise RuntimeError((home / "service.log").read_text()[-2000:])
    return LiveService(ready.split()[-1], home, process)


@pytest.fixture(scope="session")
def live_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    """One `mint serve` with the tiny model, shared by the tests that only talk to it."""
    service = start_service(tmp_path_factory.mktemp("home"), tiny_model)
    yield service
    service.stop()


@pytest.fixture
def service(live_service: LiveService) -> str:
    """The base URL of a live service that serves ``tiny/llama``."""
    return live_service.base_url


@pytest.fixture(scope="session")
def roomy_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service whose tiny model has room for conversations, and also goes by a real one's name."""
    folder = tmp_path_factory.mktemp("roomy")
    model = build_model(folder / "tiny" / "llama", max_position_embeddings=4096)
    service = start_service(folder / "home", model, aliases={MODEL: model, SMOLLM2: model})
    yield service
    service.stop()


@pytest.fixture(scope="session")
def other_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    """A second service, with short polls and low limits for what is sent to it."""
    service = start_service(
        tmp_path_factory.mktemp("other"),
        tiny_model,
        long_poll_s=0.05,
        max_body_bytes=1_000_000,
        max_upload_bytes=5_000_000,
    )
    yield service
    service.stop()


@dataclass
class KeyedService:
    """A service that takes only keys, and the key of each of its users."""

    live: LiveService
    keys: dict[str, str]

    def client(self, user: str) -> RawClient:
        return RawClient(self.live.base_url, self.keys[user])


@pytest.fixture(scope="session")
def keyed_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KeyedService]:
    """A service that other tests' users share. It releases sessions and checkpoints soon."""
    home = tmp_path_factory.mktemp("keyed")
    store = Store(f"sqlite:///{home / 'mint.db'}", home)
    store.migrate()
    keys = {user: create_key(store, user, user) for user in USERS}
    store.close()
    service = start_service(home, tiny_model, session_idle_s=1.0, expired_kept_s=0.0)
    yield KeyedService(service, keys)
    service.stop()


DATABASES = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
"""Runs a test that starts services, or uses ``database``, once with each kind of database."""
SLOWLY_BOTH = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
"""The same, with PostgreSQL only among the slow tests."""


@pytest.fixture(scope="session")
def database_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty PostgreSQL database, or None: SQLite in the home folder."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return None
    server: Postgres = request.getfixturevalue("database_server")
    return server.database()


@pytest.fixture
def own_service(
    tiny_model: Path, tmp_path: Path, database: str | None
) -> Iterator[Callable[..., LiveService]]:
    """Starts services of a test's own, on one home folder, and ends them after the test."""
    started: list[LiveService] = []
    of_all = {"database_url": database} if database else {}

    def start(port: int = 0, precision: str = "exact", **settings: Any) -> LiveService:
        settings = of_all | settings
        started.append(start_service(tmp_path / "home", tiny_model, port, precision, **settings))
        return started[-1]

    yield start
    for service in started:
        service.process.kill()
        service.process.wait()


@dataclass
class RawClient:
    """Requests exactly as a test writes them, without an SDK in between."""

    base_url: str
    key: str = "tml-test"
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(
            base_url=f"{self.base_url}/api/v1", headers={"X-API-Key": self.key}, timeout=60
        )

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json={} if body is None else body, **options)

    def session(self) -> str:
        answer = self.post("/create_session", {"tags": [], "sdk_version": "0.22.0"})
        return str(answer.json()["session_id"])

    def run(
        self,
        session: str | None = None,
        number: int = 0,
        metadata: dict[str, str] | None = None,
        **lora: Any,
    ) -> str:
        """A new training run of the tiny model, ready for operations."""
        config = {"rank": 4, "seed": 1, **lora}
        body = {"session_id": session or self.session(), "model_seq_id": number}
        body |= {"user_metadata": metadata} if metadata else {}
        answer = self.post("/create_model", {**body, "base_model": MODEL, "lora_config": config})
        return str(self.result(answer.json()["request_id"])["model_id"])

    def operate(self, kind: str, run: str, seq_id: int | None, **fields: Any) -> str:
        """Submit an operation in JSON and return its request id."""
        answer = self.post(f"/{kind}", {"model_id": run, "seq_id": seq_id, **fields})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["request_id"])

    def retrieve(self, request_id: str) -> httpx.Response:
        """The finished answer, however long it takes."""
        while True:
            answer = self.post("/retrieve_future", {"request_id": request_id})
            if answer.status_code != 408:
                return answer

    def result(self, request_id: str) -> dict[str, Any]:
        """The JSON of a finished request, which may be a failure."""
        answer = self.retrieve(request_id)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result


@pytest.fixture
def raw(service: str) -> RawClient:
    return RawClient(service)
