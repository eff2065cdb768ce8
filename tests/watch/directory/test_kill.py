"""A kill at any byte leaves a directory that opens, and shows all but the last step."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mint.watch.directory.reader import NotARun, open_run
from mint.watch.directory.recorder import RunDirectory
from tests.watch.directory.writer import rollout

ROOT = Path(__file__).resolve().parents[3]


def write_until_killed(path: Path, lines: int, more_bytes: int) -> int:
    """Let a process write until it has said so many steps, and kill it. Return the last step."""
    command = [sys.executable, "-m", "tests.watch.directory.writer", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        # A process that is killed later is somewhere inside the next steps.
        size = (path / "metrics.jsonl").stat().st_size
        while (path / "metrics.jsonl").stat().st_size < size + more_bytes:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    return int(said[-1])


@pytest.mark.parametrize(("lines", "more_bytes"), [(1, 0), (2, 1), (4, 77), (7, 150)])
def test_a_killed_writer_leaves_all_complete_steps_and_is_resumed_without_gap_or_repeat(
    tmp_path: Path, lines: int, more_bytes: int
) -> None:
    said = write_until_killed(tmp_path, lines, more_bytes)
    run = open_run(tmp_path)
    steps = [row["step"] for row in run.metrics()]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= said
    for step in steps:  # rollouts come before metrics, so that no step lacks them
        assert [row["response"] for row in run.rollouts(step)] == [
            rollout(step, index)["response"] for index in range(4)
        ]
    assert run.damaged() == []
    assert run.summary()["status"] == "interrupted"
    again = write_until_killed(tmp_path, lines, 0)
    steps = [row["step"] for row in open_run(tmp_path).metrics()]
    assert steps == list(range(1, max(again, steps[-1]) + 1))
    assert open_run(tmp_path).steps()[: len(steps)] == steps


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written")
    with RunDirectory(path) as run:
        run.write_config({"task": "cut", "steps": 4, "stop": ["\n"]})
        for step in range(1, 5):
            run.rollouts(rollout(step, index) for index in range(2))
            run.metrics({"step": step, "reward/mean": 0.5})
            run.event("checkpoint", step=step)
            if step == 2:
                run.save_state({"step": 2})
        run.set_status("finished")
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shares=st.lists(st.floats(0, 1), min_size=9, max_size=9))
def test_a_directory_whose_files_were_cut_anywhere_opens_and_keeps_what_is_whole(
    written: Path, tmp_path: Path, shares: list[float]
) -> None:
    path = tmp_path / "cut"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(written, path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    assert len(files) == len(shares)
    for file, share in zip(files, shares, strict=True):
        content = file.read_bytes()
        file.write_bytes(content[: round(share * len(content))])
    try:
        run = open_run(path)
    except NotARun:
        pytest.fail("files that are there, even empty ones, are a run")
    for number, (file, share) in enumerate(zip(files, shares, strict=True)):
        if file.suffix == ".parquet" and share == 1:
            step = int(file.stem)
            assert len(run.rollouts(step)) == 2, number
    steps = [row["step"] for row in run.metrics()]
    assert steps == list(range(1, len(steps) + 1))
    assert isinstance(run.config(), dict)
    assert run.summary()["verdict"]["verdict"]
    assert len(run.events()) <= 4
    run.damaged()
    with RunDirectory(path) as directory:
        (path / "state.json").unlink()  # it is replaced whole or not at all: never cut by a kill
        directory.rewind()
        directory.rollouts([rollout(1, 0)])
        directory.metrics({"step": 1})
    assert [row["step"] for row in open_run(path).rollouts()] == [1]


def test_a_directory_is_readable_while_it_is_written(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_config({"task": "live", "steps": 9})
        reader = open_run(tmp_path)
        for step in range(1, 10):
            run.rollouts([rollout(step, 0)])
            assert reader.rollouts(step)[0]["reward"] == 0.5
            run.metrics({"step": step, "reward/mean": 0.5})
            assert reader.metrics()[-1]["step"] == step
            assert reader.summary()["status"] == "running"
        run.set_status("finished")
    assert reader.summary()["status"] == "finished"
    assert reader.summary()["verdict"]["verdict"] == "finished"
