"""Every preset of conf/algorithm/: what it trains on, from its formula, and a step on a service.

The expected numbers are computed here from rewards and lengths alone, with numpy in float64.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mint
from mint.jobs.compose import compose_jobs
from mint.jobs.job import make_config
from mint.rl import RLAdapter, RLConfig
from mint.rl.datums.datum import values
from mint.rl.loop.update import loss_config
from mint.watch.directory.recorder import METRICS, read_rows
from tests.rl.stepping import stepping
from tests.service_fixture import MODEL

from .conftest import CONF, ROOT, TASK, Command, run_directory

Groups = list[np.ndarray]
GROUP, LENGTH = 4, 5


class Letters(RLAdapter):
    """Pays for bytes below 128: half of what a random byte model writes."""

    def build_dataset(self) -> list[str]:
        return [f"{random.randint(0, 999)}:" for _ in range(20)]

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        return [int(token) for token in tokenizer.encode(sample)]

    def compute_reward(self, response: str, sample: str) -> float:
        return sum(character < "\x80" for character in response) / max(1, len(response))


def centred(rewards: Groups) -> Groups:
    return [group - group.mean() for group in rewards]


def standardised(rewards: Groups) -> Groups:
    return [(group - group.mean()) / (group.std() + 1e-6) for group in rewards]


def others(rewards: Groups) -> Groups:
    return [
        np.asarray([r - (group.sum() - r) / (len(group) - 1) for r in group]) for group in rewards
    ]


def over_the_batch(rewards: Groups) -> Groups:
    spread = np.concatenate(centred(rewards)).std()
    return [group / (spread + 1e-6) for group in centred(rewards)]


def over_all(rewards: Groups) -> Groups:
    everything = np.concatenate(rewards)
    return [(group - everything.mean()) / (everything.std() + 1e-6) for group in rewards]


Weights = Callable[[np.ndarray], np.ndarray]
PLAIN: Weights = lambda n: np.ones(len(n))  # noqa: E731
BY_TOKEN: Weights = lambda n: np.full(len(n), 1 / n.sum())  # noqa: E731
BY_ANSWER: Weights = lambda n: 1 / (len(n) * n)  # noqa: E731
CONSTANT: Weights = lambda n: np.full(len(n), 1 / (len(n) * LENGTH))  # noqa: E731
PRESETS: dict[str, tuple[Callable[[Groups], Groups], Weights, str, dict[str, float] | None]] = {
    "default": (centred, PLAIN, "importance_sampling", None),
    "grpo": (standardised, BY_ANSWER, "ppo", {"kl_k3": 0.04}),
    "dr_grpo": (centred, CONSTANT, "ppo", None),
    "dapo": (
        standardised,
        BY_TOKEN,
        "ppo",
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28},
    ),
    "rloo": (others, PLAIN, "importance_sampling", None),
    "reinforce_pp": (over_all, BY_TOKEN, "ppo", None),
    "cispo": (standardised, BY_TOKEN, "cispo", None),
    "gspo": (standardised, BY_ANSWER, "gspo", None),
    "gspo_token": (over_the_batch, BY_ANSWER, "gspo", None),
    "ppo": (centred, PLAIN, "ppo", None),
}


def composed(name: str, folder: Path) -> RLConfig:
    overrides = [
        f"algorithm={name}",
        f"model.base_model={MODEL}",
        "model.rank=4",
        "training.steps=1",
        "training.batch_size=3",
        "training.learning_rate=0.01",
        "training.truncation_limit=1.0",
        f"sampling.group_size={GROUP}",
        f"sampling.max_tokens={LENGTH}",
        f"logging.run_dir={folder / name}",
        "evaluation.holdout_fraction=0",
    ]
    (job,) = compose_jobs(CONF, overrides)
    return make_config(job.job)


def test_there_is_a_formula_for_every_preset() -> None:
    assert PRESETS.keys() == {path.stem for path in (CONF / "algorithm").glob("*.yaml")}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains_on_what_its_formula_says(name: str, service: str, tmp_path: Path) -> None:
    advantages, weights, loss_fn, config = PRESETS[name]
    cfg = composed(name, tmp_path)
    assert (cfg.loss_fn, loss_config(cfg)) == (loss_fn, config)
    assert cfg.temperature == (0.8 if name == "default" else 1.0)
    assert (cfg.max_refills > 0) == (name == "dapo")
    with stepping(Letters(), cfg, mint.ServiceClient(base_url=service, api_key="tml-a")) as run:
        batch = run.sample(1)
        datums = run.build_datums(batch)
        compared = batch.groups if cfg.compares_batch else run.useful(batch)
        rewards = [np.asarray([r.reward + r.penalty for r in g.rollouts]) for g in compared]
        found = iter(np.concatenate(advantages(rewards)))
        advantage = {id(r): next(found) for g in compared for r in g.rollouts}
        used = batch.groups if cfg.trains_every_answer else compared
        rollouts = [r for g in used for r in g.rollouts]
        lengths = np.asarray([r.length for r in rollouts], dtype=np.float64)
        expected = [
            (advantage.get(id(r), 0.0), w, r.length)
            for r, w in zip(rollouts, weights(lengths), strict=True)
            if cfg.trains_every_answer or abs(advantage[id(r)]) > 1e-9
        ]
        assert len(expected) > 0
        for datum, (a, w, n) in zip(datums, expected, strict=True):
            inside = values(datum, "weights") != 0
            assert inside.sum() == n
            assert values(datum, "advantages")[inside] == pytest.approx(a, rel=1e-5, abs=1e-6)
            assert values(datum, "weights")[inside] == pytest.approx(w, rel=1e-5)
        run.record(batch, run.train(batch, datums))
    (row,) = read_rows(tmp_path / name / METRICS)
    assert math.isfinite(row["train/loss"])
    assert row["train/grad_norm"] > 0
    assert row["train/updates"] == cfg.substeps * cfg.mini_batches
    assert row["mismatch/mean"] < (1e-3 if cfg.temperature == 1.0 else 1.0)
    assert ("kl/k3" in row) == (name in ("grpo", "rloo", "reinforce_pp"))


def test_the_page_has_every_preset_and_its_commands_compose() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\|.*\|.*\|.*\|$", text, re.M)
    assert set(rows) >= PRESETS.keys()
    commands = re.findall(r"^    mint train (.*)$", text, re.M)
    assert len(commands) > 2
    for command in commands:
        (job,) = compose_jobs(CONF, command.split())
        make_config(job.job)


def test_the_command_takes_a_preset_by_its_name(train: Command) -> None:
    ended = train("algorithm=dapo", "training.steps=1", "sampling.max_refills=1", *TASK)
    assert ended.code == 0, ended.err
    (row,) = read_rows(run_directory(ended.out) / METRICS)
    assert row["train/updates"] == 2
