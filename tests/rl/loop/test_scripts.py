"""Scripts as people run them, interrupted and killed: how they end, and that they resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mint.watch.directory.recorder import METRICS, read_rows
from tests.service_fixture import MODEL

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import os, signal, sys
sys.path.insert(0, {demos!r})
from rl_core import RLConfig, run_grpo
from tests.rl.conftest import Letters

class Task(Letters):
    step = 0

    def compute_reward(self, response, sample):
        if self.step == int(os.environ.get("AT", "0")) > 0:
            self.step = 0
            os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
        return super().compute_reward(response, sample)

    def evaluate(self, step, rewards, num_datums):
        self.step = step

run_grpo(Task(), RLConfig.from_env())
"""
PREEMPTED = f"""
import os, signal
from mint.embedded import embedded_service
from mint.rl import RLConfig, run_grpo
from tests.processes import descendants_of
from tests.rl.conftest import Letters

class Task(Letters):
    step = 0

    def compute_reward(self, response, sample):
        if self.step == 2:
            self.step = 0
            assert len(descendants_of()) >= 2  # the service and its worker
            for pid in (*sorted(descendants_of()), os.getpid()):  # parents first
                os.kill(pid, signal.SIGTERM)
        return super().compute_reward(response, sample)

    def evaluate(self, step, rewards, num_datums):
        self.step = step

run_grpo(Task(), RLConfig(base_model="{MODEL}", steps=4, batch_size=2, max_tokens=4))
"""
OUTSIDE = f"""
from mint.rl import RLConfig, run_grpo
from tests.rl.conftest import Letters

class Task(Letters):
    def make_prompt(self, sample, tokenizer):
        print("making a prompt", flush=True)
        return super().make_prompt(sample, tokenizer)

    def evaluate(self, step, rewards, num_datums):
        print(f"done with {{step}}", flush=True)

run_grpo(Task(), RLConfig(base_model="{MODEL}", steps=1000, batch_size=2, max_tokens=4))
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_script_with_one_line_and_the_same_command_resumes_it(
    service: str, tmp_path: Path
) -> None:
    script = tmp_path / "task.py"
    script.write_text(SCRIPT.format(demos=str(ROOT / "demos" / "rl")))
    settings = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "MINT_BASE_URL": service,
        "MINT_BASE_MODEL": MODEL,
        "MINT_RL_STEPS": "5",
        "MINT_RL_BATCH": "2",
        "MINT_RL_MAX_TOKENS": "4",
        "MINT_RL_CHECKPOINT_EVERY": "2",
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={**os.environ, **settings, **more},
            capture_output=True,
            text=True,
            timeout=120,
        )

    stopped = run(AT="1", SIGNAL="SIGINT")
    assert stopped.returncode == 130
    assert stopped.stdout.splitlines()[-1] == (
        "Interrupted. The same command resumes after step 1."
    )
    assert "Traceback" not in stopped.stderr

    killed = run(AT="3", SIGNAL="SIGKILL")
    assert killed.returncode == -9
    assert "Resuming after step 1." in killed.stdout

    lost = run(MINT_BASE_URL="http://127.0.0.1:9", MINT_RL_SERVICE_TIMEOUT="0.2")
    assert lost.returncode == 1
    (message,) = lost.stderr.splitlines()
    assert message.endswith("service_timeout sets how long a run waits for it.")

    finished = run()
    assert finished.returncode == 0, finished.stderr
    assert "Resuming after step 2." in finished.stdout
    (directory,) = (tmp_path / "runs").iterdir()
    assert [row["step"] for row in read_rows(directory / METRICS)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_ctrl_c_from_outside_ends_a_script_wherever_it_is(service: str, tmp_path: Path) -> None:
    script = tmp_path / "task.py"
    script.write_text(OUTSIDE)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "MINT_BASE_URL": service}

    def interrupted(line: str, presses: int) -> list[str]:
        with subprocess.Popen(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            before = list(iter(process.stdout.readline, f"{line}\n"))
            for _ in range(presses):
                process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
        assert "Traceback" not in out + errors
        return [*before, *out.splitlines()]

    assert interrupted("making a prompt", 1)[-1] == "Interrupted. The same command starts again."
    goes_on = "Interrupted. The same command resumes after step "
    assert interrupted("done with 2", 1)[-1].startswith(goes_on)
    assert interrupted("done with 4", 2)[-1].startswith(goes_on)
    (directory,) = (tmp_path / "runs").iterdir()
    steps = [row["step"] for row in read_rows(directory / METRICS)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 3


def test_sigterm_to_every_process_of_a_job_saves_completed_work(
    tiny_model: Path, tmp_path: Path
) -> None:
    script = tmp_path / "task.py"
    script.write_text(PREEMPTED)
    settings = {"MINT_HOME": str(tmp_path / "home"), "MINT_MODELS": f"{MODEL}={tiny_model}"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **settings, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.splitlines()[-1] == "Interrupted. The same command resumes after step 2.", (
        ended.stderr
    )
    assert ended.returncode == 143
    assert "Traceback" not in ended.stderr
