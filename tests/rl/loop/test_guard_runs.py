"""Guard rails in real runs: each kind of problem, provoked on purpose, is reported at its step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import mint
from mint import types
from mint.rewards import Score
from mint.rl import Chat, RLConfig, RunStopped, run_grpo
from mint.rl.datums.datum import replaced, values
from mint.watch.directory.recorder import EVENTS, METRICS, read_rows
from tests.rl.conftest import Letters
from tests.rl.evaluation.test_evaluator import Fooled

Settings = Callable[..., RLConfig]


class Stepping(Letters):
    """Knows which step it is in."""

    step = 0

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.step = step


class Hackable(Stepping):
    """Pays more and more in training, and less and less on what is held out."""

    def build_dataset(self) -> list[str]:
        return ["a:", "b:"]

    def build_holdout(self) -> list[str]:
        return ["x:", "y:"]

    def compute_reward(self, response: str, sample: str) -> Any:
        noise = 0.01 * super().compute_reward(response, sample)
        rising = min(0.9, 0.2 * self.step)
        return noise + (rising if sample in self.build_dataset() else 1.0 - rising)


class Lopsided(Stepping):
    """A component that rises while the other falls."""

    def compute_reward(self, response: str, sample: str) -> Any:
        letters = super().compute_reward(response, sample)
        style, truth = 0.2 * self.step, 1.0 - 0.2 * self.step
        return Score(letters, {"style": style, "truth": truth})


class Stuttering(Letters):
    """Pays for saying the same thing again."""

    def compute_reward(self, response: str, sample: str) -> Any:
        return max((response.count(letter) for letter in response), default=0) / 24


class Shifted(Letters):
    """Trains on logprobs that are not the sampler's."""

    def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
        return [
            replaced(d, logprobs=(values(d, "logprobs") - 0.3) * (values(d, "weights") != 0))
            for d in datums
        ]


class Rambling:
    """A conversation that gets longer with every step."""

    step = 0

    def build_dataset(self) -> list[int]:
        return [1, 2]

    async def rollout(self, task: int, chat: Chat) -> float:
        for _ in range(1 + self.step):
            chat.user("go on")
            reply = await chat.reply()
        return len(set(reply.text)) / 100

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.step = step


TROUBLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "truncation": (Letters, {"truncation_limit": 0.2, "steps": 1}),
    "repetition": (
        Stuttering,
        {"max_tokens": 24, "steps": 10, "learning_rate": 0.05, "repetition_limit": 0.08},
    ),
    "entropy_collapse": (
        Stuttering,
        {"steps": 12, "max_tokens": 24, "learning_rate": 0.1, "entropy_floor": 0.9},
    ),
    "entropy_collapse by the exact entropy": (
        Stuttering,
        {"steps": 12, "max_tokens": 24, "learning_rate": 0.1, "entropy_floor": 0.9}
        | {"temperature_end": 0.7, "temperature_schedule": "linear", "measure_entropy": True},
    ),
    "kl_runaway": (Letters, {"steps": 3, "kl_penalty_coef": 0.01, "learning_rate": 0.3}),
    "kl_runaway without a penalty": (
        Letters,
        {"steps": 3, "kl_samples": 3, "learning_rate": 0.3},
    ),
    "mismatch": (Shifted, {"temperature": 1.0, "steps": 1}),
    "component_runaway": (Lopsided, {"steps": 6}),
    "length_runaway": (Rambling, {"steps": 7}),
    "reward_hacking": (
        Fooled,
        {"steps": 8, "batch_size": 4, "group_size": 8, "learning_rate": 0.05, "eval_every": 4}
        | {"eval_samples": 4, "eval_temperature": 1.0, "holdout_size": 32}
        | {"holdout_fraction": 0.3, "success_threshold": 0.6},
    ),
}


@pytest.mark.parametrize("name", sorted(TROUBLE))
def test_each_problem_is_reported_at_the_step_where_it_begins(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, capsys: Any, name: str
) -> None:
    task, more = TROUBLE[name]
    name = name.split()[0]
    run_grpo(task(), settings(**more), service=client)
    found = [event for event in read_rows(tmp_path / "run" / EVENTS) if event.get("name") == name]
    assert found
    assert 1 <= found[0]["step"] <= more["steps"]
    assert f"  {name}: " in capsys.readouterr().out


def test_a_schedule_to_a_low_temperature_does_not_report_entropy_collapse(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    cooling = {"temperature_end": 0.02, "temperature_schedule": "linear", "measure_entropy": True}
    cfg = settings(steps=9, learning_rate=0.0, entropy_floor=0.5, **cooling)
    run_grpo(Letters(), cfg, service=client)
    sampled = [row["policy/entropy"] for row in read_rows(tmp_path / "run" / METRICS)]
    assert fmean(sampled[-5:]) < 0.5 * fmean(sampled[:3])
    findings = [row.get("name") for row in read_rows(tmp_path / "run" / EVENTS)]
    assert "entropy_collapse" not in findings


def test_a_finding_in_stop_on_ends_the_run_and_keeps_the_last_good_checkpoint(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    cfg = settings(
        steps=6,
        eval_every=1,
        checkpoint_every=1,
        success_threshold=0.9,
        stop_on=("reward_hacking",),
    )
    with pytest.raises(RunStopped, match="reward_hacking") as stopped:
        run_grpo(Hackable(), cfg, service=client)
    events = read_rows(tmp_path / "run" / EVENTS)
    assert events[-1]["event"] == "stopped"
    saved = [event["path"] for event in events if event["event"] == "checkpoint"]
    assert saved[-1] in str(stopped.value)
    assert client.create_training_client_from_state(saved[-1])
