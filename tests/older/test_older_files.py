"""Files written before the code was rearranged are still read, and mean the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mint
from mint.rl import run_grpo
from mint.watch import open_run
from mint.watch.directory.recorder import METRICS, read_rows
from tests.older.write import Vowels, greedy, settings, step
from tests.service_fixture import LiveService, RawClient, start_service

WRITTEN = Path(__file__).with_name("written.tar.gz")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older files, unpacked."""
    folder = tmp_path_factory.mktemp("older")
    shutil.unpack_archive(WRITTEN, folder)
    return folder


@pytest.fixture(scope="module")
def numbers(older: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((older / "numbers.json").read_text())
    return found


@pytest.fixture(scope="module")
def of_older_home(older: Path) -> Iterator[LiveService]:
    """A service of today on the home folder of a killed older one."""
    service = start_service(older / "home", older / "model")
    yield service
    service.stop()


def compare(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found["tokens"] == expected["tokens"]
    np.testing.assert_allclose(found["logprobs"], expected["logprobs"], atol=5e-5)


def test_an_older_checkpoint_gives_the_same_logprobs(
    of_older_home: LiveService, numbers: dict[str, Any]
) -> None:
    compare(greedy(of_older_home.base_url, numbers["final"]), numbers["greedy"])


def test_an_older_journal_is_replayed_and_its_gradient_is_not_lost(
    of_older_home: LiveService, numbers: dict[str, Any]
) -> None:
    raw = RawClient(of_older_home.base_url)
    run, following = numbers["interrupted"], numbers["following"]
    assert "metrics" in step(raw, run, following)
    saved = raw.operate("save_weights_for_sampler", run, following + 1, path="whole")
    compare(greedy(of_older_home.base_url, raw.result(saved)["path"]), numbers["after"])


def test_an_older_state_with_its_optimizer_trains_on(
    of_older_home: LiveService, numbers: dict[str, Any]
) -> None:
    client = mint.ServiceClient(base_url=of_older_home.base_url, api_key="tml-test")
    training = client.create_training_client_from_state_with_optimizer(numbers["state"])
    assert training.get_info().model_data.model_name == "tiny/llama"
    metrics = training.optim_step(mint.types.AdamParams(learning_rate=0.0)).result().metrics
    assert metrics is not None


def test_an_older_run_directory_opens_and_is_continued(
    of_older_home: LiveService, older: Path
) -> None:
    before = read_rows(older / "run" / METRICS)
    assert [row["step"] for row in open_run(older / "run").metrics()] == [1, 2]
    client = mint.ServiceClient(base_url=of_older_home.base_url, api_key="tml-test")
    run_grpo(Vowels(), settings(older / "run", 3), service=client)
    rows = read_rows(older / "run" / METRICS)
    assert rows[:2] == before
    assert [row["step"] for row in rows] == [1, 2, 3]
