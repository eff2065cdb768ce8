"""docs/metrics.md lists every metric that a run writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import mint
from mint.rewards import Score
from mint.rl import RLConfig, run_grpo
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| (`[^|]+`) \|([^|]*)\|([^|]*)\|", re.M)


def documented() -> dict[str, str]:
    """Metrics of the page, and their meaning."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    return {
        name: row[3].strip()
        for row in ROW.finditer(text)
        for name in re.findall(r"`([^`]+)`", row[1])
    }


class Parts(Letters):
    """Pays in two components."""

    def compute_reward(self, response: str, sample: str) -> Any:
        value = super().compute_reward(response, sample)
        return Score(value, {"letters": value, "other": 0.5}, {"letters": "counted"})


def test_every_metric_of_a_run_with_everything_switched_on_is_on_the_page(
    client: mint.ServiceClient, settings: Callable[..., RLConfig], tmp_path: Path
) -> None:
    cfg = settings(
        steps=2,
        curriculum=True,
        holdout_fraction=0.3,
        holdout_size=3,
        eval_every=1,
        eval_samples=2,
        eval_temperature=1.0,
        kl_penalty_coef=0.1,
        temperature=1.0,
        loss_fn="ppo",
        substeps=2,
        max_refills=1,
        entropy_coef=0.01,
    )
    run_grpo(Parts(), cfg, service=client)
    run = open_run(tmp_path / "run")
    written = {name for row in run.metrics() for name in row} - {"step", "time"}
    known = documented()
    patterns = [name.replace("pass@k", "pass@[0-9]*") for name in known]
    missing = [name for name in written if not any(fnmatch(name, each) for each in patterns)]
    assert missing == [], "write these metrics into docs/metrics.md"
    assert all(known.values()), "a metric has no meaning"
    assert {"reward/mean", "kl/k3", "train/drift", "holdout/pass@2", "component/other"} <= written
    assert {"train/entropy", "train/clipped"} <= written

    # The same run has the tokens of every rollout, with what the trainer says of them.
    rows = run.rollouts(2)
    assert len(rows) >= 8
    trained = [row for row in rows if row["advantage"]]
    assert trained
    for row in trained:
        (segment,) = row["segments"]
        inside = [i for i, sampled in enumerate(segment["mask"]) if sampled]
        assert len(inside) == row["length"]
        assert "".join(segment["pieces"][: inside[0]]).endswith(":")
        for index in inside:  # the same weights at temperature 1: they agree before the update
            assert abs(segment["trainer"][index] - segment["sampler"][index]) < 0.02
            assert abs(segment["advantages"][index] - row["advantage"]) < 1e-4
        assert segment["trainer"][0] is None
        assert row["reasons"] == {"letters": "counted"}
        assert row["sampled_at"] > 0
    assert run.summary()["status"] == "finished"
    assert run.summary()["step"] == 2


def test_every_metric_on_the_page_is_written_somewhere() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src/mint/rl").rglob("*.py"))
    literal = [name for name in documented() if not re.search(r"[*]|pass@k", name)]
    assert [name for name in literal if f'"{name}"' not in source] == []
