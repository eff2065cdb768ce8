"""scripts/system_packages.sh, on machines that are made of a few programs in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "system_packages.sh"
PROGRAMS = ("awk", "bash", "cat", "env", "find", "grep", "mktemp", "rm", "sed", "true")
INSTALLED = ("git", "make", "gcc")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs: no bubblewrap, no sudo, an ordinary user."""
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    for name in INSTALLED:
        program(tmp_path / name, "")
    program(tmp_path / "id", "echo 1000")
    program(tmp_path / "apt-get", f'echo "$@" >> {tmp_path}/asked')
    return tmp_path


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def run(machine: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    environment = {"PATH": str(machine), "PYTHON": sys.executable, **variables}
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_nothing_is_printed_when_all_packages_are_installed(machine: Path) -> None:
    assert run(machine, *INSTALLED) == (0, "", "")
    assert not (machine / "asked").exists()


def test_without_root_and_sudo_one_line_says_what_to_type(machine: Path) -> None:
    code, out, errors = run(machine, "git", "bubblewrap")
    assert (code, out) == (0, "")
    assert errors == (
        "system_packages.sh: missing: bubblewrap. As root, type: "
        "apt-get install --no-install-recommends bubblewrap\n"
    )


def test_in_ci_a_missing_package_is_an_error(machine: Path) -> None:
    assert run(machine, "bubblewrap", CI="true")[0] == 1


@pytest.mark.parametrize("how", ["root", "sudo"])
def test_what_is_missing_is_installed_and_explained(how: str, machine: Path) -> None:
    if how == "root":
        program(machine / "id", "echo 0")
    else:
        program(machine / "sudo", '[ "$1" = -n ] && exit; "$@"')
    code, out, errors = run(machine, "git", "bubblewrap")
    assert (code, errors) == (0, "")
    assert out.splitlines()[0] == "Installing Debian packages:"
    assert out.splitlines()[1].split()[0] == "bubblewrap"
    asked = (machine / "asked").read_text().splitlines()
    assert asked == ["update -qq", "install --no-install-recommends bubblewrap --yes -qq"]


def test_an_installation_that_fails_shows_why_and_what_to_type(machine: Path) -> None:
    program(machine / "id", "echo 0")
    program(machine / "apt-get", "echo no network; exit 100")
    code, _, errors = run(machine, "bubblewrap")
    assert code == 0
    assert "no network" in errors
    assert "apt-get install --no-install-recommends bubblewrap" in errors.splitlines()[-1]
    assert run(machine, "bubblewrap", CI="true")[0] == 1


def test_every_package_is_listed_with_its_reason(machine: Path) -> None:
    code, out, _ = run(machine, "--list")
    listed = [line.split(maxsplit=1) for line in out.splitlines()]
    assert code == 0
    assert {"bubblewrap", "chromium", "python3-venv"} <= {name for name, _ in listed}
    assert all(len(reason) > 10 for _, reason in listed)
    assert run(machine, "emacs")[0] == 2


def test_the_script_can_be_run() -> None:
    assert os.access(SCRIPT, os.X_OK)
