"""Interruptions: the same call resumes where it stopped, as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import CheckpointGone, ConfigError, Interrupted, RLConfig, run_grpo
from mint.rl.recording.directory import open_directory
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import METRICS, STATE, RunDirectory, read_rows
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping
from tests.service_fixture import LiveService

Settings = Callable[..., RLConfig]
TIMES = ("time", "time/sample", "time/train", "time/total")


class Crashed(RuntimeError):
    """What ends a run in a test."""


class Stopped(Letters):
    """Stops at a step: by Ctrl-C while it is scored, or by a crash when it is trained."""

    def __init__(self, at: int, how: str) -> None:
        self.at, self.how, self.done = at, how, 0

    def compute_reward(self, response: str, sample: str) -> Any:
        if self.done == self.at - 1 and self.how == "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
            self.how = "done"
        return super().compute_reward(response, sample)

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.done = step
        if step == self.at and self.how == "crash":
            raise Crashed("out of memory")


def comparable(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / METRICS)
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


FULL = {
    "steps": 5,
    "checkpoint_every": 2,
    "curriculum": True,
    "max_refills": 1,
    "lr_schedule": "linear",
    "temperature_schedule": "linear",
    "temperature_end": 0.6,
    "holdout_fraction": 0.3,
    "holdout_size": 3,
    "eval_every": 3,
    "success_threshold": 0.6,
}


@pytest.mark.parametrize("how", ["ctrl-c", "crash"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, how: str, capsys: Any
) -> None:
    whole = settings(run_dir=str(tmp_path / "whole"), **FULL)
    run_grpo(Letters(), whole, service=client)

    broken = settings(run_dir=str(tmp_path / "broken"), **FULL)
    with pytest.raises((KeyboardInterrupt, Crashed)) as ended:
        run_grpo(Stopped(4, how), broken, service=client)
    done = comparable(tmp_path / "broken")
    assert 1 <= max(row["step"] for row in done) < 5
    said = capsys.readouterr().out
    if how == "ctrl-c":
        assert isinstance(ended.value, Interrupted)
        assert ended.value.code == 130
        assert "The same command resumes after step" in said

    run_grpo(Letters(), broken, service=client)
    assert "Resuming after step" in capsys.readouterr().out
    resumed, expected = comparable(tmp_path / "broken"), comparable(tmp_path / "whole")
    assert [row["step"] for row in resumed] == [0, 1, 2, 3, 4, 5]
    for row, wanted in zip(resumed, expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    rollouts = [open_run(tmp_path / name).rollouts() for name in ("broken", "whole")]
    assert [(r["prompt"], r["response"]) for r in rollouts[0]] == [
        (r["prompt"], r["response"]) for r in rollouts[1]
    ]


def test_a_run_that_samples_ahead_resumes_with_the_same_prompts(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    ahead = {**FULL, "max_staleness": 1, "eval_every": 0, "learning_rate": 0.0}
    run_grpo(Letters(), settings(run_dir=str(tmp_path / "whole"), **ahead), service=client)
    broken = settings(run_dir=str(tmp_path / "broken"), **ahead)
    with pytest.raises(Crashed):
        run_grpo(Stopped(4, "crash"), broken, service=client)
    run_grpo(Letters(), broken, service=client)
    whole, resumed = (open_run(tmp_path / name).rollouts() for name in ("whole", "broken"))
    prompts = [[(row["step"], row["prompt"]) for row in rows] for rows in (whole, resumed)]
    assert prompts[0] == prompts[1]
    assert [row["step"] - 1 - row["version"] for row in whole] == [
        int(row["step"] > 1) for row in whole
    ]
    assert all(row["step"] - 1 - row["version"] <= 1 for row in resumed)


def test_a_finished_run_names_its_weights_and_continues_only_with_more_steps(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    path = run_grpo(Letters(), settings(), service=client)
    assert run_grpo(Letters(), settings(), service=client) == path
    assert len(read_rows(tmp_path / "run" / METRICS)) == 2
    longer = run_grpo(Letters(), settings(steps=3), service=client)
    assert longer != path
    assert [row["step"] for row in read_rows(tmp_path / "run" / METRICS)] == [1, 2, 3]


def test_a_run_that_was_killed_after_its_last_step_only_saves_its_weights(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    with stepping(Letters(), settings(), client) as run:
        for step in run:
            batch = run.sample(step)
            run.record(batch, run.train(batch, run.build_datums(batch)))
    path = run_grpo(Letters(), settings(), service=client)
    assert client.create_sampling_client(model_path=path)
    assert [row["step"] for row in read_rows(tmp_path / "run" / METRICS)] == [1, 2]


def test_other_settings_are_another_run(client: mint.ServiceClient, settings: Settings) -> None:
    run_grpo(Letters(), settings(), service=client)
    with pytest.raises(ConfigError, match=r"learning_rate=0.01 \(now 0.5\).*another run_dir"):
        run_grpo(Letters(), settings(learning_rate=0.5), service=client)


def test_without_a_run_dir_the_same_script_finds_its_unfinished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = RLConfig()

    def opened(**state: Any) -> Path:
        with open_directory(cfg, Letters()) as directory:
            directory.save_state({"finished": False, **state})
            return directory.path

    first = opened()
    second, third = Path(f"{first}-2"), Path(f"{first}-3")
    assert opened() == first
    with RunDirectory(first):
        assert opened() == second  # another process is writing to the first
    os.utime(first / STATE, (2e9, 2e9))
    assert opened(finished=True) == first  # it was saved last
    assert opened() == second
    with RunDirectory(second):
        assert opened() == third
    shutil.rmtree(first)
    os.utime(third / STATE, (2e9, 2e9))
    assert opened(finished=True) == third
    assert opened(finished=True) == second
    assert opened() == first


def test_of_two_interrupted_runs_the_same_command_resumes_the_one_that_was_saved_last(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = settings(run_dir=None, steps=4, checkpoint_every=1)

    def resumed(task: Letters) -> list[str]:
        with contextlib.suppress(Interrupted):
            run_grpo(task, cfg, service=client)
        return [line for line in capsys.readouterr().out.splitlines() if "after step" in line]

    task = Stopped(9, "never")
    with open_directory(cfg, task) as beside:  # another process is writing to it
        resumed(Stopped(3, "ctrl-c"))
    (second,) = set(beside.path.parent.iterdir()) - {beside.path}
    with RunDirectory(second):
        assert resumed(Stopped(2, "ctrl-c")) == [
            "Interrupted. The same command resumes after step 1."
        ]
    assert resumed(task) == ["Resuming after step 1."]
    assert resumed(task) == ["Resuming after step 2."]


def test_tasks_with_other_names_are_other_runs(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Named(Letters):
        def __init__(self, name: str) -> None:
            self.name = name

    def opened(name: str, cfg: RLConfig) -> str:
        with open_directory(cfg, Named(name)) as directory:
            directory.save_state({"finished": False})
            return directory.path.name

    first = opened("gym:a/b", RLConfig())
    assert first.startswith("gym-a-b-")
    assert opened("gym:a/b", RLConfig()) == first
    assert opened("gym:a b", RLConfig()) != first
    opened("gym:a", settings())
    with pytest.raises(ConfigError, match=r"task='gym:a' \(now 'gym:b'\)"):
        opened("gym:b", settings())


def test_a_missing_checkpoint_is_reported_with_what_to_do(
    client: mint.ServiceClient, other_service: LiveService, settings: Settings
) -> None:
    run_grpo(Letters(), settings(), service=client)
    elsewhere = mint.ServiceClient(base_url=other_service.base_url, api_key="tml-rl")
    with pytest.raises(CheckpointGone, match="same home folder"):
        run_grpo(Letters(), settings(steps=3), service=elsewhere)
