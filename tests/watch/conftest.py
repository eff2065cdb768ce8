"""Made-up run directories, and the dashboard's server over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from benchmarks.watch.generate import generate
from mint.watch.dashboard.run_index import RunIndex, RunPlace
from mint.watch.dashboard.server import Watch, create_app


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs of 12 steps, which no test changes."""
    folder = tmp_path_factory.mktemp("runs")
    generate(folder / "first", steps=12, groups=8, answers=4)
    generate(folder / "second", steps=12, groups=8, answers=4, seed=1)
    return folder


@pytest.fixture(scope="session")
def first(runs: Path) -> RunPlace:
    return next(place for place in RunIndex([runs]).runs() if place.path.name == "first")


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    app = create_app(Watch(RunIndex([runs])))
    with TestClient(app, base_url="http://127.0.0.1:8265") as client:
        yield client
