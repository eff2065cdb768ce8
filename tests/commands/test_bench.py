"""``mint bench`` measures a tiny model, and what it recommends follows from the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ceilings import cache_bytes_per_token
from mint.commands.bench.ceilings import find_products, flops_per_token
from mint.commands.bench.recommend import BenchReport, SamplingSpeed, TrainingSpeed, recommend
from mint.commands.bench.timed_run import StepTimes
from tests.service_fixture import MODEL

SMALL = ["--answers", "2", "--tokens", "4", "--prompt-tokens", "16", "--rank", "4"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", "bench", *arguments],
        env={**os.environ, "COLUMNS": "200", "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_running_service_is_measured_and_the_machine_is_not(service: str) -> None:
    done = run("--url", service, "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"] == MODEL
    assert report["ceilings"] is None
    assert report["prompt_tokens"] == 16
    assert [speed["answers"] for speed in report["sampling"]] == [2]
    assert report["sampling"][0]["tokens_per_second"] > 0
    assert {*report["training"]["step"]} == {"handoff", "sample", "train"}
    assert report["recommendation"]["answers"] == 2


@pytest.mark.slow
def test_without_a_service_one_is_started_and_the_machine_is_measured(
    tiny_model: Path, tmp_path: Path
) -> None:
    variables = {"MINT_HOME": str(tmp_path), "MINT_MODELS": f"{MODEL}={tiny_model}"}
    done = run("--matmul-size", "128", *SMALL, OMP_NUM_THREADS="1", **variables)
    assert done.returncode == 0, done.stderr
    for expected in (MODEL, "GFLOP/s bfloat16", "GB/s", "2 concurrently", "A GRPO STEP, 2 answers"):
        assert expected in done.stdout
    assert "batch_size=1 group_size=4" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--answers", "8,1"], "write increasing numbers, such as 1,8,48"),
        (["--answers", "many"], "write increasing numbers, such as 1,8,48"),
        (["--answers", "1,100000"], "512 is the maximum"),
        (["--model", "no/such-model"], "There is no model 'no/such-model'"),
    ],
)
def test_a_mistake_gives_one_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, MINT_HOME=str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# ---- the recommendation --------------------------------------------------------------------------

MACHINE: dict[str, Any] = {
    "device": "cpu",
    "threads": 2,
    "matmul": {"bfloat16": 4e11, "float32": 2e11},
    "copy": 3e10,
    "flops_per_token": 2e8,
}


@pytest.fixture
def report() -> BenchReport:
    speeds = [(1, 20.0), (8, 120.0), (48, 400.0), (96, 420.0)]
    return BenchReport(
        model="a/model",
        service="embedded",
        precision="bfloat16",
        reason="this CPU has it",
        prompt_tokens=50,
        answer_tokens=64,
        context_length=2048,
        ceilings=MACHINE,
        sampling=[SamplingSpeed(answers, 1.0, speed) for answers, speed in speeds],
        training=TrainingSpeed(48, StepTimes(0.5, 8.0, 4.0), 1000.0),
    )


def test_the_batch_is_where_more_answers_stop_paying(report: BenchReport) -> None:
    advice = recommend(report)
    assert (advice.answers, advice.batch_size, advice.group_size) == (48, 6, 8)
    assert (
        advice.because[0] == "More than 48 concurrent answers increase throughput by at most 10%."
    )


def test_throughput_that_still_grows_is_reported(report: BenchReport) -> None:
    advice = recommend(replace(report, sampling=report.sampling[:3]))
    assert "still grew" in advice.because[0]


def test_the_time_of_a_step_adds_up(report: BenchReport) -> None:
    # handoff, sampling 48 x 64 at 400/s, training 48 x (50 + 64) at 1000/s
    assert recommend(report).step_seconds == pytest.approx(0.5 + 7.68 + 5.472)
    longer = replace(report, answer_tokens=recommend(report).max_tokens)
    assert recommend(longer).step_seconds == pytest.approx(60, rel=0.01)


def test_answers_are_not_longer_than_the_context(report: BenchReport) -> None:
    assert recommend(replace(report, context_length=100)).max_tokens == 50


@pytest.mark.parametrize(
    ("precision", "rates", "advised"),
    [
        ("bfloat16", {"bfloat16": 4e11, "float32": 2e11}, "auto"),
        ("exact", {"bfloat16": 4e11, "float32": 2e11}, "auto"),
        ("exact", {"bfloat16": 1e11, "float32": 2e11}, "exact"),
        (None, {"bfloat16": 4e11, "float32": 2e11}, "auto"),
    ],
)
def test_a_precision_is_advised_by_the_machine_s_rates(
    report: BenchReport, precision: str | None, rates: dict[str, float], advised: str
) -> None:
    other = replace(report, precision=precision, ceilings={**MACHINE, "matmul": rates})
    assert recommend(other).precision == advised


def test_the_share_of_the_matmul_rate_is_of_the_number_in_use(report: BenchReport) -> None:
    assert report.matmul_share == pytest.approx(420 * 2e8 / 4e11)
    assert replace(report, precision="exact").matmul_share == pytest.approx(420 * 2e8 / 2e11)
    assert replace(report, ceilings=None).matmul_share is None


def test_products_are_those_of_a_real_model(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    config = json.loads((tiny_model / "config.json").read_text())
    weights = sum(
        p.numel() for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n
    )
    assert flops_per_token(find_products(config)) == 2 * weights
    assert cache_bytes_per_token(config) == 2 * 2 * 2 * 8 * 2
    assert find_products({**config, "num_local_experts": 4}) == []
