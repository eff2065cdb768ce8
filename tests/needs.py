"""What some tests need of the machine. Without it they are skipped, and in CI they fail."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

INSTALL = "Type, as root: scripts/system_packages.sh"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def need_sandbox() -> None:
    """Skip the test where model code cannot run in a sandbox."""
    from mint.rewards.code.sandbox import Sandbox, SandboxUnavailable

    try:
        Sandbox()
    except SandboxUnavailable as error:
        missing_sandbox(error)


def missing_sandbox(error: Exception) -> NoReturn:
    """Skip the test that found no sandbox."""
    if shutil.which("bwrap") is None:
        missing(f"needs the sandbox, and bubblewrap is not installed. {INSTALL} bubblewrap")
    missing(f"needs the sandbox. {error}")


def need_browser() -> str:
    """The path of a Chromium; the test is skipped where there is none."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    missing(f"needs a browser, and chromium is not installed. {INSTALL} chromium fonts-dejavu-core")


def need_postgres() -> Path:
    """The folder of PostgreSQL's programs; the test is skipped where there are none."""
    found = shutil.which("postgres")  # Debian keeps them out of the path, by version
    folders = [Path(os.path.realpath(found)).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists():
            return folder
    missing(f"needs PostgreSQL, which is not installed. {INSTALL} postgresql")


def need_gym() -> None:
    """Skip the test where reasoning-gym is not installed."""
    if find_spec("reasoning_gym") is None:
        missing(f"needs reasoning-gym, which needs a C compiler. {INSTALL}, then make test")


def missing(why: str) -> NoReturn:
    """Skip the test, or fail it in CI, where nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)
