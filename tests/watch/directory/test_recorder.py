"""Run directories: written during training, truncated to the saved state."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mint.watch.directory.files import (
    BLOCK,
    ROLLOUTS_1,
    RolloutFile,
    lines,
    rollout_files,
    step_file,
)
from mint.watch.directory.reader import RunReader, open_run
from mint.watch.directory.recorder import EVENTS, METRICS, RunDirectory, RunDirectoryBusy, read_rows


def row(step: int, response: str = "8", **more: Any) -> dict[str, Any]:
    return {"step": step, "response": response, "reward": 1.0, **more}


def test_a_row_is_on_disk_when_its_call_returns(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.metrics({"step": 1, "time": 5.0, "reward": 0.5})
        run.rollouts([row(1, "hello é \ud800"), row(1, "")])
        run.event("checkpoint", step=1)
        assert read_rows(run.path / METRICS) == [{"step": 1, "time": 5.0, "reward": 0.5}]
        assert [r["response"] for r in open_run(run.path).rollouts(1)] == ["hello é \\ud800", ""]
        assert read_rows(run.path / EVENTS)[0]["event"] == "checkpoint"


def test_a_step_is_written_in_the_background_and_before_the_next_call(
    tmp_path: Path,
) -> None:
    meanwhile = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        meanwhile.wait()  # what the caller does next
        yield row(1, "late")

    with RunDirectory(tmp_path) as run:
        run.write_step(rows(), {"step": 1, "reward": 0.5})
        assert not (tmp_path / METRICS).exists()
        meanwhile.set()
        run.event("checkpoint", step=1)
        assert [r["reward"] for r in read_rows(tmp_path / METRICS)] == [0.5]
        assert [r["response"] for r in open_run(tmp_path).rollouts(1)] == ["late"]
        run.write_step([row(2)], {"step": 2})
        run.write_step([row(3)], {"step": 3})
        run.save_state({"step": 3})
        assert [r["step"] for r in read_rows(tmp_path / METRICS)] == [1, 2, 3]
        run.write_step([row(4)], {"step": 4})
    assert open_run(tmp_path).steps() == [1, 2, 3, 4]


def test_a_step_that_could_not_be_written_is_raised_at_the_next_call(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_step([row(1, segments=[{"tokens": [1], "mask": []}])], {"step": 1})
        with pytest.raises(ValueError, match="different lengths"):
            run.event("checkpoint")
        run.metrics({"step": 2})
    directory = RunDirectory(tmp_path)
    directory.write_step([row(3, segments=[{"tokens": [1], "mask": []}])], {"step": 3})
    with pytest.raises(ValueError, match="different lengths"):
        directory.close()
    RunDirectory(tmp_path).close()  # its lock is free again
    assert [r["step"] for r in read_rows(tmp_path / METRICS)] == [2]


def test_a_step_says_when_it_was_written(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"step": 1})
        assert read_rows(run.path / METRICS)[0]["time"] > 0


@pytest.mark.parametrize("odd", ["\x00", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r", "\n"])
def test_a_character_that_may_end_a_line_elsewhere_does_not_end_a_row(
    tmp_path: Path, odd: str
) -> None:
    with RunDirectory(tmp_path) as run:
        run.rollouts([row(1, f"one{odd}two")])
        run.event("finding", text=f"one{odd}two")
        run.write_config({})
        assert open_run(run.path).rollouts()[0]["response"] == f"one{odd}two"
        assert open_run(run.path).events()[0]["text"] == f"one{odd}two"


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"time": 1, "loss": float("nan"), "more": {"x": [float("inf")]}})
        assert read_rows(run.path / METRICS) == [{"time": 1, "loss": None, "more": {"x": [None]}}]
        run.rollouts([row(1) | {"reward": float("nan"), "components": {"a": float("inf")}}])
        (found,) = open_run(run.path).rollouts()
        assert (found["reward"], found["components"]) == (None, {"a": None})


def test_everything_of_a_rollout_comes_back(tmp_path: Path) -> None:
    segment = {
        "tokens": [5, 6, 7],
        "pieces": ["a", "b", "c"],
        "mask": [False, True, True],
        "versions": [None, 4, 5],
        "sampler": [0.0, -0.5, -0.25],
        "trainer": [None, -0.5, None],
        "advantages": [0.0, 0.75, 0.75],
        "entropy": None,
    }
    given = row(
        3,
        group=1,
        index=2,
        identity="q1",
        prompt="3 + 5 =",
        messages=[{"role": "user", "content": "3 + 5 ="}],
        components={"right": 1.0},
        reasons={"right": "8 is 8"},
        penalty=-0.5,
        advantage=0.75,
        length=2,
        truncated=True,
        stop="length",
        masked=True,
        error="ValueError: no",
        traceback="Traceback",
        trace=[{"role": "user", "content": "3 + 5 ="}],
        version=4,
        digests={4: "4f", 5: "5f"},
        replaced=True,
        sampled_at=12.5,
        segments=[segment, {"tokens": [1], "mask": [False], "sampler": [0.0]}],
    )
    with RunDirectory(tmp_path) as run:
        run.rollouts([given, row(3)])
        run.write_config({})
    first, second = open_run(tmp_path).rollouts(3)
    shown = first.pop("segments")
    assert first == {name: value for name, value in given.items() if name != "segments"}
    assert shown[0] == {**segment, "sampler": [None, -0.5, -0.25]}
    assert shown[1] == dict.fromkeys(segment) | {"tokens": [1], "mask": [False], "sampler": [None]}
    assert (second["segments"], second["trace"], second["messages"]) == ([], [], None)


def test_rollouts_from_before_digests_were_recorded_have_none(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.rollouts([row(1, digests={0: "0f"}), row(2, digests={1: "1f"})])
        run.write_config({})
    found = open_run(tmp_path)
    assert [r["digests"] for r in found.rollouts(columns=["digests"])] == [{0: "0f"}, {1: "1f"}]
    for file in found.rollout_files():
        pq.write_table(pq.read_table(file.path).drop_columns(["digests"]), file.path)
    assert [r["digests"] for r in found.rollouts()] == [{}, {}]
    assert found.rollouts(1, columns=["step", "digests"]) == [{"step": 1, "digests": {}}]


def test_pieces_that_are_no_text_by_themselves_are_escaped(tmp_path: Path) -> None:
    segment = {"tokens": [1, 2], "pieces": ["a", "\ud800"], "mask": [True, True]}
    with RunDirectory(tmp_path) as run:
        run.rollouts([row(1, segments=[segment])])
        run.write_config({})
    assert open_run(tmp_path).rollouts(1)[0]["segments"][0]["pieces"] == ["a", "\\ud800"]


def test_lists_of_a_segment_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = {"tokens": [1, 2], "mask": [True]}
    with RunDirectory(tmp_path) as run, pytest.raises(ValueError, match="tokens 2, mask 1"):
        run.rollouts([row(1, segments=[wrong])])


def test_rollouts_of_a_step_may_come_in_parts(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.rollouts([row(1, "a")])
        run.rollouts([row(1, "b"), row(2, "c")])
        run.write_config({})
    assert [r["response"] for r in open_run(tmp_path).rollouts()] == ["a", "b", "c"]


def test_a_continued_run_has_no_gap_and_no_repeat(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        for step in (1, 2, 3):
            run.metrics({"step": step})
            run.rollouts([row(step)])
            if step == 2:
                run.save_state({"step": step})
    with open(tmp_path / METRICS, "ab") as file:
        file.write(b'{"step": 4, "half a li')
    (tmp_path / "rollouts" / ".000004.parquet.new").write_bytes(b"PAR1half")
    with RunDirectory(tmp_path) as run:
        run.rewind()
        run.metrics({"step": 3})
        assert [row["step"] for row in read_rows(run.path / METRICS)] == [1, 2, 3]
        assert [row["step"] for row in open_run(run.path).rollouts()] == [1, 2]
    assert sorted(p.name for p in (tmp_path / "rollouts").iterdir()) == [
        "000001.parquet",
        "000002.parquet",
    ]


def test_a_table_that_lost_its_end_is_not_filled_up(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"step": 1})
        end = (tmp_path / METRICS).stat().st_size
        run.metrics({"step": 2})
        run.save_state({"step": 2})
    os.truncate(tmp_path / METRICS, end)
    with RunDirectory(tmp_path) as run:
        run.rewind()
        run.metrics({"step": 3})
    assert [row["step"] for row in read_rows(tmp_path / METRICS)] == [1, 3]


def test_a_run_without_a_state_starts_over(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"step": 1})
        run.rollouts([row(1)])
    with RunDirectory(tmp_path) as run:
        run.rewind()
        assert run.state() is None
        assert read_rows(run.path / METRICS) == []
        assert rollout_files(run.path) == []


def test_an_unfinished_last_line_is_not_read_nor_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 1}\n{"ste\n[1]\n{"step": 2}\n{"st')
    assert read_rows(tmp_path / METRICS) == [{"step": 1}, {"step": 2}]
    assert open_run(tmp_path).damaged() == [METRICS]


def test_two_processes_cannot_write_to_one_directory(tmp_path: Path) -> None:
    with RunDirectory(tmp_path), pytest.raises(RunDirectoryBusy, match="another run directory"):
        RunDirectory(tmp_path)
    RunDirectory(tmp_path).close()


def test_the_config_is_kept_as_yaml(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_config({"steps": 5, "betas": [0.9, 0.999], "stop": None})
        assert run.config() == {"steps": 5, "betas": [0.9, 0.999], "stop": None}
    assert "steps: 5" in (tmp_path / "config.yaml").read_text()


def test_a_state_that_could_not_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.save_state({"step": 1})
        with pytest.raises(TypeError):
            run.save_state({"step": object()})
    assert json.loads((tmp_path / "state.json").read_text())["step"] == 1


def test_a_run_whose_process_cannot_exist_was_interrupted(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_config({})
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "pid": 10**30}))
    assert open_run(tmp_path).summary()["status"] == "interrupted"


# ---- merged files ----


def blocks(path: Path, steps: int) -> list[str]:
    with RunDirectory(path) as run:
        run.write_config({"steps": steps})
        for step in range(1, steps + 1):
            run.rollouts([row(step, f"a{step}"), row(step, f"b{step}")])
        run.save_state({"step": steps})
    return sorted(file.name for file in (path / "rollouts").iterdir())


def test_files_that_the_state_covers_are_merged_by_the_hundred(tmp_path: Path) -> None:
    names = blocks(tmp_path, BLOCK + 1)
    assert names == ["000000-000099.parquet", "000100.parquet", "000101.parquet"]
    run = open_run(tmp_path)
    assert [r["response"] for r in run.rollouts(57)] == ["a57", "b57"]
    assert [r["step"] for r in run.rollouts(columns=["step"])] == [
        step for step in range(1, BLOCK + 2) for _ in range(2)
    ]
    assert run.steps() == list(range(1, BLOCK + 2))
    with RunDirectory(tmp_path) as again, pytest.raises(ValueError, match="must not decrease"):
        again.rollouts([row(5)])


def unmerged(path: Path) -> RunDirectory:
    """A run of a block of steps that no saved state covers yet."""
    run = RunDirectory(path)
    run.write_config({"steps": BLOCK})
    for step in range(BLOCK):
        run.rollouts([row(step)])
    return run


def test_rollouts_that_are_merged_while_they_are_read_come_once(tmp_path: Path) -> None:
    with unmerged(tmp_path) as run:
        found = open_run(tmp_path).iter_rollouts(columns=["step"])
        first = [next(found)["step"] for _ in range(3)]
        run.merge(BLOCK - 1)
        assert [*first, *(row["step"] for row in found)] == list(range(BLOCK))


def test_steps_are_complete_while_their_files_are_merged(tmp_path: Path) -> None:
    with unmerged(tmp_path) as run:

        class MergedAfterListing(RunReader):
            def rollout_files(self) -> list[RolloutFile]:
                listed = super().rollout_files()
                run.merge(BLOCK - 1)
                return listed

        assert MergedAfterListing(tmp_path).steps() == list(range(BLOCK))
        assert open_run(tmp_path).damaged() == []


def test_a_kill_while_merging_repeats_nothing(tmp_path: Path) -> None:
    blocks(tmp_path, BLOCK + 1)
    left = step_file(tmp_path, 57)
    left.write_bytes(step_file(tmp_path, 100).read_bytes())  # as if it was not removed yet
    assert [r["response"] for r in open_run(tmp_path).rollouts(57)] == ["a57", "b57"]
    with RunDirectory(tmp_path) as run:
        run.rewind()
    assert not left.exists()
    assert len(open_run(tmp_path).rollouts(columns=["step"])) == 2 * (BLOCK + 1)


def test_a_merged_file_is_cut_where_an_older_state_stands(tmp_path: Path) -> None:
    blocks(tmp_path, BLOCK + 1)
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**state, "rollouts": 3}))
    with RunDirectory(tmp_path) as run:
        run.rewind()
        run.rollouts([row(4, "new")])
    assert [r["response"] for r in open_run(tmp_path).rollouts()] == [
        *("a1", "b1", "a2", "b2", "a3", "b3", "new")
    ]


# ---- format 1 ----


def format_1(path: Path) -> None:
    """A directory as version 1 wrote it: two steps saved, and a third after that."""
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text("task: old\nsteps: 4\n")
    metrics = [{"step": step, "reward/mean": step / 10} for step in (1, 2, 3)]
    rollouts = [row(step, truncated=step == 2, trace=[], error=None) for step in (1, 2, 3)]
    (path / METRICS).write_bytes(lines(metrics))
    (path / ROLLOUTS_1).write_bytes(lines(rollouts))
    (path / EVENTS).write_bytes(lines([{"time": 5.0, "event": "checkpoint", "step": 2}]))
    sizes = {METRICS: len(lines(metrics[:2])), ROLLOUTS_1: len(lines(rollouts[:2]))}
    sizes[EVENTS] = (path / EVENTS).stat().st_size
    (path / "state.json").write_text(json.dumps({"step": 2, "finished": False, "sizes": sizes}))


def test_a_directory_of_format_1_opens(tmp_path: Path) -> None:
    format_1(tmp_path)
    run = open_run(tmp_path)
    assert run.format == 1
    assert [r["stop"] for r in run.rollouts()] == ["stop", "length", "stop"]
    assert run.rollouts(2)[0]["reasons"] == {}
    assert run.steps() == [1, 2, 3]
    summary = run.summary()
    assert (summary["task"], summary["status"], summary["step"]) == ("old", "running", 3)
    assert summary["verdict"]["verdict"] == "too early to say"


def test_a_directory_of_format_1_resumes_where_it_stood(tmp_path: Path) -> None:
    format_1(tmp_path)
    with RunDirectory(tmp_path) as run:
        run.rewind()
        run.write_config({"task": "old", "steps": 4})
        for step in (3, 4):
            run.rollouts([row(step, "new")])
            run.metrics({"step": step})
        run.save_state({"step": 4})
    run_ = open_run(tmp_path)
    assert [(r["step"], r["response"]) for r in run_.rollouts()] == [
        *((1, "8"), (2, "8"), (3, "new"), (4, "new"))
    ]
    assert [r["step"] for r in run_.metrics()] == [1, 2, 3, 4]
    with RunDirectory(tmp_path) as run:
        run.rewind()
    assert [r["step"] for r in open_run(tmp_path).rollouts()] == [1, 2, 3, 4]
