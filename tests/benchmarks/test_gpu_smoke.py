"""``python -m benchmarks.gpu`` runs to its end on a tiny model, and a failing section is noted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import make_rows, render

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_section_of_the_tiny_shape_runs(tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--shape", "tiny"]
    done = subprocess.run(
        [*command, "--peers", "--precision", "auto,exact", "--out", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(out.read_text())
    errors = {name: s["error"] for name, s in result["sections"].items() if "error" in s}
    assert errors == {}, done.stderr[-2000:]
    assert done.returncode == 0
    assert result["sections"]["sampling"]["8"]["tokens_per_second"] > 0
    assert result["sections"]["gap-exact"]["largest"] < 1e-4
    assert "sampling, 8 answers" in done.stdout
    assert len(make_rows(result)) > 15
    assert render(result, {})
