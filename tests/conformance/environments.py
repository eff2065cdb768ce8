"""The clients under test, each in its own environment: ``make conformance-envs`` makes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .proxy import Proxy

REPOSITORY = Path(__file__).resolve().parents[2]
_OURS = re.compile(r"(MINT|TINKER|PYTHON|HF)_?")


@dataclass(frozen=True)
class Client:
    """An unmodified client: what it is called, how it is imported and the key its users have."""

    name: str
    module: str = "tinker"
    key: str = "tml-conformance"
    is_ours: bool = False

    @property
    def python(self) -> Path:
        if self.is_ours:
            return Path(sys.executable)
        return REPOSITORY / ".venvs" / self.name / "bin" / "python"

    @property
    def sends_json(self) -> bool:
        """Whether it trains with JSON bodies, as clients did up to 0.22."""
        return self.name in ("tinker-0.22.0", "mindlab")

    def run(self, script: str, *arguments: str, folder: Path, **variables: str) -> str:
        """Run a script of this folder with the client; what it printed."""
        if not self.python.exists():
            pytest.skip(f"{self.name} is not installed; type: make conformance-envs")
        theirs = {k: v for k, v in os.environ.items() if not _OURS.match(k)}
        answer = subprocess.run(
            [str(self.python), "-P", str(Path(__file__).parent / script), *arguments],
            env={
                **theirs,
                "TINKER_API_KEY": self.key,
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(folder / "huggingface"),
                "OMP_NUM_THREADS": "1",
                **variables,
            },
            capture_output=True,
            text=True,
            cwd=folder,
        )
        assert answer.returncode == 0, answer.stderr[-4000:]
        return answer.stdout


NEWEST = Client("tinker-0.36.0", is_ours=True)
CLIENTS = [
    NEWEST,
    Client("tinker-0.25.0"),
    Client("tinker-0.22.0"),
    Client("mindlab", module="mint", key="sk-conformance"),
]
COOKBOOK = Client("cookbook")


@dataclass(frozen=True)
class Conversation:
    """What a client saw in each scenario of ``client.py``, and what went over the wire."""

    client: Client
    outcomes: dict[str, dict[str, Any]]
    wire: Proxy
    lossy_wire: Proxy

    def saw(self, scenario: str) -> Any:
        outcome = self.outcomes[scenario]
        assert "failed" not in outcome, outcome["failed"]
        return outcome["saw"]


def converse(
    client: Client, wire: Proxy, lossy_wire: Proxy, folder: Path, scenarios: Sequence[str] = ()
) -> Conversation:
    """Let a client go through the scenarios, by default all."""
    urls = wire.base_url, lossy_wire.base_url
    printed = client.run("client.py", client.module, *urls, *scenarios, folder=folder)
    return Conversation(client, json.loads(printed.splitlines()[-1]), wire, lossy_wire)
