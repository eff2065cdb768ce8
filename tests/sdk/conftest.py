"""A service for the SDK's tests: one that scripts start by themselves, and one by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SEED_MODEL = "Qwen/Qwen3-0.6B"
OUR_VARIABLES = re.compile(r"(MINT|TINKER)_")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell has set must not reach a test."""
    for name in filter(OUR_VARIABLES.match, list(os.environ)):
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def sdk_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sdk")


@pytest.fixture
def embedded(tiny_model: Path, sdk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which ``mint.ServiceClient()`` starts a service with a tiny model.

    The tests of one file share the service, as the clients of one script do.
    """
    variables = {
        "MINT_HOME": str(sdk_folder / "home"),
        "MINT_CACHE": str(sdk_folder / "cache"),
        "MINT_MODELS": f"{SEED_MODEL}={tiny_model}",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def served(tiny_model: Path, sdk_folder: Path) -> Iterator[str]:
    """The URL of a ``mint serve`` that was started by hand, and takes any key."""
    command = [sys.executable, "-m", "mint.cli", "serve", "--port", "0"]
    command += ["--home", str(sdk_folder / "served"), "--model", f"{SEED_MODEL}={tiny_model}"]
    log = sdk_folder / "serve.log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield ready_url(process, log)
    finally:
        process.terminate()
        process.wait(30)


def ready_url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout
    for line in process.stdout:
        if match := re.search(r"mint is ready at (\S+)", line):
            return match[1]
    raise AssertionError(f"mint serve ended before it was ready:\n{log.read_text()}")
