"""mint as a user has it after ``pip install``: a wheel, in an environment without the clone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

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

    The packages that it needs are those of this process: they are not downloaded again.
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
    (packages / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _call(*pip, "--python", str(python), "install", *options[:2], str(wheel), cwd=folder)
    model = build_model(folder / "models" / "tiny", max_position_embeddings=1024)
    return Installed(wheel, sdist, python.parent, folder / "home", model)


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
