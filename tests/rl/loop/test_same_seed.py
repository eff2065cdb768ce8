"""Two runs with the same seed are the same run, bit for bit, whoever else uses the service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mint
from mint.rl import RLConfig, run_grpo
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters
from tests.service_fixture import MODEL

Settings = Callable[..., RLConfig]


def test_two_runs_are_equal_while_others_sample(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    wanted = {"steps": 3, "group_size": 5, "max_tokens": 20, "eval_every": 1, "holdout_size": 2}
    wanted["holdout_fraction"] = 0.3
    run_grpo(Letters(), settings(run_dir=str(tmp_path / "alone"), **wanted), service=client)
    over, other = threading.Event(), client.create_sampling_client(base_model=MODEL)

    def disturb() -> None:
        number = 0
        while not over.is_set():
            number += 1
            prompt = mint.ModelInput.from_ints([65 + number % 26] * (1 + number % 90))
            params = mint.SamplingParams(max_tokens=1 + number % 30)
            other.sample(prompt, num_samples=1 + number % 7, sampling_params=params).result()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        run_grpo(Letters(), settings(run_dir=str(tmp_path / "beside"), **wanted), service=client)
    finally:
        over.set()
        thread.join()
    alone, beside = (outcome(tmp_path / name) for name in ("alone", "beside"))
    assert alone == beside


def outcome(folder: Path) -> tuple[Any, ...]:
    """Return everything that a run wrote, but for times and names of checkpoints."""
    run = open_run(folder)
    metrics = [
        {k: v for k, v in row.items() if not k.startswith("time") and "per_s" not in k}
        for row in run.metrics()
    ]
    rollouts = [{k: v for k, v in row.items() if k != "sampled_at"} for row in run.rollouts()]
    return metrics, rollouts
