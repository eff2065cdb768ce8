"""The training command as people type it, on a live service with a tiny model."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mint.commands.training import evaluate
from tests.service_fixture import MODEL, LiveService

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMALL = {
    "MINT_BASE_MODEL": MODEL,
    "MINT_LORA_RANK": "4",
    "MINT_RL_STEPS": "2",
    "MINT_RL_BATCH": "2",
    "MINT_RL_MAX_TOKENS": "4",
    "MINT_RL_HOLDOUT_SIZE": "4",
    "MINT_RL_LR": "0.01",
    "MINT_RL_TRUNCATION_LIMIT": "1.0",
}
LETTERS = """
import random
from mint.rl import RLAdapter

class Letters(RLAdapter):
    '''Pays for bytes below 128: half of what a random byte model writes.'''

    def build_dataset(self):
        return [{"question": f"{random.randint(0, 999)}:", "answer": "7"} for _ in range(20)]

    def make_prompt(self, sample, tokenizer):
        return tokenizer.encode(sample["question"])

    def compute_reward(self, response, sample):
        return sum(character < "\\x80" for character in response) / max(1, len(response))
"""
TASK = ("task=custom", "task.adapter=letters.py:Letters")


@dataclass(frozen=True)
class Ended:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of the developer's shell out of the tests."""
    for name in filter(re.compile(r"(MINT|TINKER)_").match, list(os.environ)):
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def live_service(roomy_service: LiveService) -> LiveService:
    """The service that ``service`` is the address of."""
    return roomy_service


@pytest.fixture
def folder(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a task in it and settings for small, quick runs."""
    for name, value in {"MINT_BASE_URL": service, "MINT_API_KEY": "tml-training", **SMALL}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "letters.py").write_text(LETTERS)
    return tmp_path


Command = Callable[..., Ended]


@pytest.fixture
def train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs ``python run_training.py`` with arguments."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["run_training.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "run_training.py"), run_name="__main__")
        printed = capsys.readouterr()
        return Ended(int(str(ended.value.code)), printed.out, printed.err)

    return run


@pytest.fixture
def evaluated(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``mint eval`` with arguments."""

    def run(*arguments: str) -> Ended:
        code = evaluate.main(["--config-dir", str(CONF), *arguments])
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return run


def run_directory(out: str) -> Path:
    """The run directory that a command has named."""
    (found,) = re.findall(r"run directory: (\S+)", out)
    return Path(found)
