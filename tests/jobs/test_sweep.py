"""Multirun: every combination, one table, and no job that ends the others."""

from __future__ import annotations

import json
from pathlib import Path

from mint.jobs.sweep import COLUMNS, RESULTS

from .conftest import TASK, Command

INTERRUPTING = """
import os, signal
from letters import Letters

class Interrupting(Letters):
    steps = 0

    def compute_reward(self, response, sample):
        if Interrupting.steps == 3 and not os.path.exists("interrupted"):
            open("interrupted", "w").close()
            os.kill(os.getpid(), signal.SIGINT)
        return super().compute_reward(response, sample)

    def evaluate(self, step, rewards, num_datums):
        super().evaluate(step, rewards, num_datums)
        Interrupting.steps += 1
"""
SWEEP = ("-m", *TASK, "sampling.temperature=0.7,1.0", "training.seed=0,1", "training.steps=1")


def rows_of(out: str) -> list[str]:
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(COLUMNS[0]))
    return lines[start + 1 : -1]


def test_a_sweep_runs_every_job_and_ends_with_one_table(train: Command) -> None:
    ended = train(*SWEEP, "evaluation.eval_every=1")
    assert ended.code == 0, ended.err
    rows = rows_of(ended.out)
    assert [row.split()[:2] for row in rows] == [
        [f"sampling.temperature={temperature}", f"training.seed={seed}"]
        for temperature in ("0.7", "1.0")
        for seed in ("0", "1")
    ]
    written = json.loads(Path(ended.out.split()[-1]).read_text())
    assert written["finished"]
    assert all(job["first_reward"] == job["last_reward"] > 0 for job in written["jobs"])
    assert all(job["holdout_pass_1"] is not None for job in written["jobs"])
    assert all(Path(job["run_dir"]).is_dir() for job in written["jobs"])


def test_a_job_that_fails_has_its_row_and_the_same_command_does_only_what_is_left(
    train: Command, folder: Path
) -> None:
    (folder / "mine.py").write_text(
        "import os\n"
        "def good(response):\n    return len(set(response)) / 10\n"
        "def bad(response):\n    return good(response) if os.path.exists('mended') else 1 / 0\n"
    )
    arguments = ["-m", *TASK, "training.reward_function=mine.py:bad,mine.py:good"]
    ended = train(*arguments, "training.steps=1")
    assert ended.code == 1
    failed, done = rows_of(ended.out)
    assert "reward_function=mine.py-bad" in failed
    assert " failed: 8 of 8 rollouts could not be scored" in failed
    assert done.split()[0] == "training.reward_function=mine.py:good"
    assert "Traceback" not in ended.err
    results = Path(ended.out.split()[-1])
    assert [bool(job["error"]) for job in json.loads(results.read_text())["jobs"]] == [True, False]

    (folder / "mended").touch()
    again = train(*arguments, "training.steps=1")
    assert again.code == 0
    assert again.out.count("Step 1/") == 1
    assert Path(again.out.split()[-1]) == results


def test_an_interrupted_sweep_shows_where_it_stopped_and_resumes_there(
    train: Command, folder: Path
) -> None:
    (folder / "interrupting.py").write_text(INTERRUPTING)
    task = ("task=custom", "task.adapter=interrupting.py:Interrupting")
    arguments = ("-m", *task, "training.seed=0,1,2", "training.steps=2")
    ended = train(*arguments)
    assert ended.code == 130
    done, interrupted = rows_of(ended.out)
    assert done.strip().endswith("seed=0")
    assert interrupted.strip().endswith("seed=1 failed: interrupted")

    again = train(*arguments)
    assert again.code == 0
    assert "Resuming after step 1." in again.out
    assert [row.split()[0][-1] for row in rows_of(again.out)] == ["0", "1", "2"]
    assert again.out.count("Step 1/") == 1


def test_a_sweep_is_written_where_it_is_asked_for(train: Command, folder: Path) -> None:
    arguments = ("-m", *TASK, "training.seed=0,1", "training.steps=1", "logging.run_dir=here")
    assert train(*arguments).code == 0
    assert {path.name for path in (folder / "here").iterdir()} == {RESULTS, "seed=0", "seed=1"}
