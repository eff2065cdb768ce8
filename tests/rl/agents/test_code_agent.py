"""The recipe of a code agent trains a model that acts by itself, in the sandbox, over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mint.watch import open_run
from tests.conformance.talker import END, build_talker
from tests.needs import need_sandbox
from tests.service_fixture import start_service

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).resolve().parents[3] / "demos" / "rl" / "code_agent.py"
MODEL = "tiny/repairer"
MENDED = "def count(text):\n    return len(text.split())\n"
SETTINGS = {
    "MINT_BASE_MODEL": MODEL,
    "MINT_LORA_RANK": "4",
    "MINT_RL_STEPS": "2",
    "MINT_RL_GROUP": "8",
    "MINT_RL_MAX_TOKENS": "160",
    "MINT_RL_MAX_TURNS": "3",
    "MINT_RL_LR": "1e-3",
}


def test_the_recipe_trains_on_repairs_that_the_model_makes(tmp_path: Path) -> None:
    need_sandbox()
    write = {"name": "write_file", "arguments": {"name": "words.py", "content": MENDED}}
    sayings = [f"<tool_call>{json.dumps(write)}</tool_call>{END}", f"Done.{END}"]
    model = build_talker(tmp_path / "talker", sayings)
    service = start_service(tmp_path / "home", None, aliases={MODEL: model})
    run_dir = tmp_path / "run"
    try:
        done = subprocess.run(
            [sys.executable, str(RECIPE)],
            env={
                **os.environ,
                **SETTINGS,
                "MINT_BASE_URL": service.base_url,
                "MINT_RL_RUN_DIR": str(run_dir),
            },
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    finally:
        service.stop()
    assert done.returncode == 0, done.stderr[-4000:]
    run = open_run(run_dir)
    rows = [row for row in run.metrics() if row["step"] > 0]
    assert len(rows) == 2
    assert all(row["datums"] > 0 and row["reward/failures"] == 0 for row in rows)
    assert any(row["component/solved"] > 0 for row in rows)
