"""The quickstart scripts, run as a user runs them, on a tiny model."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy
import pytest

from mint.rl.loop.checkpoints import saved_checkpoint
from mint.watch.directory.reader import open_run

from .conftest import REPOSITORY

STEP = r"avg_reward=[\d.]+ exact_rate=[\d.]+% format_rate=[\d.]+% datums=\d+"
SMALL = {
    "MINT_CUSTOM_REWARD_STEPS": "2",
    "MINT_CUSTOM_REWARD_BATCH": "2",
    "MINT_CUSTOM_REWARD_GROUP": "8",
    "MINT_CUSTOM_REWARD_MAX_TOKENS": "4",
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts record their runs under runs/ of the current folder."""
    monkeypatch.chdir(tmp_path)


def run(script: str, environment: dict[str, str], **settings: str) -> tuple[str, str, int]:
    result = subprocess.run(
        [sys.executable, str(REPOSITORY / "quickstart" / script)],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout, result.stderr, result.returncode


@pytest.fixture(scope="module")
def custom_reward() -> ModuleType:
    path = REPOSITORY / "quickstart" / "custom_reward.py"
    spec = importlib.util.spec_from_file_location("custom_reward", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_custom_reward_prints_every_step_and_where_it_saved(embedded: dict[str, str]) -> None:
    output, errors, code = run("custom_reward.py", embedded, **SMALL)
    assert code == 0, errors
    assert len(re.findall(rf"^step [12]/2 {STEP}", output, re.M)) == 2
    recorded = open_run("runs/custom-reward")
    assert len(recorded.rollouts(2)) == 16
    assert set(recorded.rollouts(1)[0]["components"]) == {
        *("format_reward", "distance_reward", "exact_bonus")
    }
    assert recorded.summary()["status"] == "finished"
    assert re.fullmatch(r"Saved: tinker://\S+/weights/\S+", output.splitlines()[-2])
    asked = subprocess.run(
        [sys.executable, "-m", "mint.cli", *shlex.split(output.splitlines()[-1])[4:], "--json"],
        env=embedded,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert "plain text, no chat template, stop '\\n', at most 4 tokens" in asked.stderr
    assert json.loads(asked.stdout)["model"] == output.splitlines()[-2].removeprefix("Saved: ")


@pytest.mark.slow
def test_custom_reward_evaluates_held_out_problems_and_draws(
    embedded: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    curve = tmp_path / "curve" / "reward.svg"
    output, errors, code = run(
        "custom_reward.py",
        embedded,
        **SMALL,
        MINT_CUSTOM_REWARD_EVAL="4",
        MINT_CUSTOM_REWARD_SHOTS="1",
        MINT_CUSTOM_REWARD_CURVE=str(curve),
    )
    assert code == 0, errors
    assert re.search(r"^Before training, 4 held-out problems: avg_reward=", output, re.M)
    assert re.search(r"^After training, 4 held-out problems: avg_reward=", output, re.M)
    assert curve.read_text().startswith("<?xml")
    rows = [json.loads(line) for line in (curve.parent / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["eval", "train", "train", "eval"]


@pytest.mark.slow
def test_quickstart_trains_twice_and_says_where_it_saved(embedded: dict[str, str]) -> None:
    settings = {"MINT_SFT_STEPS": "2", "MINT_RL_STEPS": "2", "MINT_RL_BATCH": "2"}
    output, errors, code = run("quickstart.py", embedded, **settings, MINT_RL_MAX_TOKENS="4")
    assert code == 0, errors
    assert len(re.findall(r"^sft step [12]/2 loss_per_token=[\d.]+$", output, re.M)) == 2
    assert len(re.findall(r"^rl step [12]/2 accuracy=[\d.]+% datums=\d+$", output, re.M)) == 2
    assert [len(open_run("runs/quickstart").rollouts(step)) for step in (2, 3, 4)] == [0, 8, 8]
    assert re.fullmatch(r"Saved: tinker://\S+/weights/\S+", output.splitlines()[-2])
    assert output.splitlines()[-1].startswith("Sample from it: mint sample -m runs/quickstart")
    assert saved_checkpoint(Path("runs/quickstart")) == output.splitlines()[-2].split()[1]


def test_a_bad_setting_is_named(embedded: dict[str, str]) -> None:
    _, errors, code = run("custom_reward.py", embedded, MINT_CUSTOM_REWARD_STEPS="many")
    assert code == 1
    assert (
        errors.strip()
        == "MINT_CUSTOM_REWARD_STEPS='many' is not int; try MINT_CUSTOM_REWARD_STEPS=8"
    )


def test_the_defaults_are_the_documented_ones(custom_reward: ModuleType) -> None:
    documented = {
        "BASE_MODEL": "Qwen/Qwen3-0.6B",
        "LORA_RANK": 16,
        "STEPS": 8,
        "BATCH": 8,
        "GROUP": 6,
        "RL_LR": 2e-5,
        "MAX_TOKENS": 16,
        "TEMPERATURE": 0.8,
    }
    assert {name: getattr(custom_reward, name) for name in documented} == documented


@pytest.mark.parametrize("script", ["custom_reward.py", "quickstart.py"])
def test_the_settings_in_the_docstring_are_those_in_the_code(script: str) -> None:
    source = (REPOSITORY / "quickstart" / script).read_text()
    in_code = re.findall(r'^\w+ = setting\("(\w+)", "?(.*?)"?\)$', source, re.M)
    in_docstring = re.findall(r"^    (MINT_\w+) +(\S+)", source.split('"""')[1], re.M)
    shown = {name: "" if value == "(off)" else value for name, value in in_docstring}
    assert shown == dict(in_code)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (" 42", (1.0, 0.2, 0.5, 0.3)),
        (" 40", (0.2 + 0.5 * 40 / 42, 0.2, 0.5 * 40 / 42, 0.0)),
        (" 1000", (0.2, 0.2, 0.0, 0.0)),
        (" -42", (0.2, 0.2, 0.0, 0.0)),
        ("", (0.0, 0.0, 0.0, 0.0)),
        ("forty-two", (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_a_reward_is_made_of_format_distance_and_exactness(
    response: str, expected: tuple[float, ...], custom_reward: ModuleType
) -> None:
    breakdown = custom_reward.compute_reward_breakdown(response, 42)
    assert tuple(vars(breakdown).values()) == pytest.approx(expected)


def test_small_answers_are_scored_on_a_scale_of_twenty(custom_reward: ModuleType) -> None:
    assert custom_reward.compute_reward_breakdown("5", 0).distance_reward == 0.5 * 0.75


def test_a_question_has_the_answer_of_its_own_numbers(custom_reward: ModuleType) -> None:
    problems = custom_reward.Problems(seed=1)
    for problem in (problems.draw() for _ in range(200)):
        a, b = map(int, re.findall(r"\d+", problem.question))
        assert problem.answer == a + b


def test_held_out_problems_are_never_drawn_for_training(custom_reward: ModuleType) -> None:
    problems = custom_reward.Problems(seed=1)
    held_out = {problem.operands for problem in problems.hold_out(64)}
    assert len(held_out) == 64
    assert not held_out & {problems.draw().operands for _ in range(5000)}


def test_missing_logprobs_are_an_error(custom_reward: ModuleType) -> None:
    from mint import types

    sequence = types.SampledSequence("stop", sequence_id="0", tokens_np=numpy.array([1, 2]))
    with pytest.raises(RuntimeError, match="0 logprobs for 2 tokens"):
        custom_reward.make_datum([3, 4], sequence, 1.0)
