"""The demos as people run them, and adapters written for MinT, on a service with a tiny model."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mint.watch.directory.recorder import METRICS, read_rows
from tests.needs import need_sandbox
from tests.service_fixture import MODEL

DEMOS = Path(__file__).resolve().parents[3] / "demos" / "rl"
ADAPTERS = sorted(path.stem for path in (DEMOS / "adapters").glob("*.py"))

MINT_STYLE = """
import os, random, re, sys
sys.path.insert(0, {demos!r})
from rl_core import RLAdapter, RLConfig, run_grpo

class ChatAdapter(RLAdapter):
    def build_dataset(self):
        return [random.choice(["a", "b", "c"]) for _ in range(50)]

    def make_prompt(self, sample, tokenizer):
        messages = [{{"role": "user", "content": sample}}]
        return list(tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True
        ))

    def compute_reward(self, response, sample):
        return len(set(response)) / 10

    def evaluate(self, step, rewards, num_datums):
        average = sum(rewards) / len(rewards)
        print(f"Step {{step}}: avg_reward={{average:.3f}}, datums={{num_datums}}")

if __name__ == "__main__":
    cfg = RLConfig.from_env()
    cfg.steps = int(os.environ.get("MINT_RL_STEPS", "10"))
    cfg.batch = int(os.environ.get("MINT_RL_BATCH", "8"))
    cfg.max_tokens = int(os.environ.get("MINT_RL_MAX_TOKENS", "128"))
    assert (cfg.model, cfg.rank, cfg.group) == (os.environ["MINT_BASE_MODEL"], 4, 4)
    assert (cfg.lr, cfg.temperature) == (2e-5, 0.8)
    path = run_grpo(ChatAdapter(), cfg)
    assert path.startswith("tinker://")
"""


@pytest.fixture
def run_script(
    service: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs a script as a user would, in a folder of the test's own, and gives what it prints."""

    def run(script: Path, **more: str) -> str:
        settings = {
            "MINT_BASE_URL": service,
            "MINT_API_KEY": "sk-demo",
            "MINT_BASE_MODEL": MODEL,
            "MINT_LORA_RANK": "4",
            "MINT_RL_STEPS": "2",
            "MINT_RL_BATCH": "2",
            "MINT_RL_MAX_TOKENS": "4",
            **more,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_demo_runs_to_its_saved_weights(
    name: str, run_script: Callable[..., str], tmp_path: Path
) -> None:
    if name == "code_execution":
        need_sandbox()
    printed = run_script(DEMOS / "adapters" / f"{name}.py", MINT_RL_MAX_TURNS="2")
    assert "Step 2/2: reward=" in printed
    assert "Saved: tinker://" in printed
    (directory,) = (tmp_path / "runs").iterdir()
    assert [row["step"] for row in read_rows(directory / METRICS)] == [1, 2]
    assert [row["reward/failures"] for row in read_rows(directory / METRICS)] == [0, 0]


def test_an_adapter_written_for_mint_runs_unchanged(
    run_script: Callable[..., str], tmp_path: Path
) -> None:
    script = tmp_path / "chat.py"
    script.write_text(MINT_STYLE.format(demos=str(DEMOS)))
    printed = run_script(script)
    told = [line for line in printed.splitlines() if re.match(r"Step \d: |Saved", line)]
    assert [line.split("=")[0] for line in told[:2]] == ["Step 1: avg_reward", "Step 2: avg_reward"]
    assert told[2].startswith("Saved: tinker://")
