"""Recipes as people run them: a process of their own, on a service with a tiny model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service_fixture import MODEL

DEMOS = Path(__file__).resolve().parents[2] / "demos"
SAVED = re.compile(r"^Saved: (tinker://\S+:train:\d+/(?:sampler_)?weights/\S+)", re.M)
OUR_VARIABLES = re.compile(r"(MINT|TINKER)_")

Recipe = Callable[..., str]


@pytest.fixture
def recipe(service: str, tmp_path: Path) -> Recipe:
    """Runs a recipe in a folder of the test's own, and gives what it prints."""
    inherited = {k: v for k, v in os.environ.items() if not OUR_VARIABLES.match(k)}
    settings = {"MINT_BASE_URL": service, "MINT_BASE_MODEL": MODEL, "MINT_LORA_RANK": "4"}

    def run(name: str, *arguments: str, **more: str) -> str:
        result = subprocess.run(
            [sys.executable, str(DEMOS / name), *arguments],
            env={**inherited, **settings, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


def numbers(pattern: str, printed: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, printed)]
