"""The tables of the benchmarks: made from JSON, with ratios, shares of the ceiling and verdicts."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.cpu.contenders import environment, find_contenders
from benchmarks.cpu.rows import CpuResult
from benchmarks.gpu import rows as gpu_rows
from benchmarks.gpu.shapes import SHAPES
from benchmarks.table import MET, MISSED, UNKNOWN, Row, Spread, Target, rate, ratio, seconds

GFLOP = 10**9


def measurement(what: str, who: str, seconds: float, **more: float) -> dict[str, Any]:
    return {"round": 0, "what": what, "who": who, "seconds": seconds, "tokens": 480, **more}


def contender(family: str, error: str | None = None) -> dict[str, Any]:
    return {"label": f"{family} at its best", "family": family, "facts": {}, "error": error}


@pytest.fixture
def cpu() -> dict[str, Any]:
    """A result with a vLLM that is half as fast as mint, and one that is slower still."""
    step = {"handoff": 0.5, "sample": 1.5, "train": 1.0}
    return {
        "kind": "cpu",
        "date": "2026-11-15T12:00:00+00:00",
        "machine": {
            "cpu": "test", "cores": 2, "system": "Linux", "commit": "abc", "load_before": 0.1
        },
        "settings": {
            "model": "a/model", "precision": "auto", "rounds": 1, "prompts": 2, "group": 5,
            "prompt_tokens": [10, 10], "long": 48, "short": 16, "train_tokens": 250, "rank": 16,
        },
        "mint": {"precision": "bfloat16", "reason": "this CPU has it"},
        "contenders": {
            "vllm-fast": contender("vllm"),
            "vllm-slow": contender("vllm"),
            "peft-float32": contender("peft", "ran out of memory"),
        },
        "ceilings": [
            {
                "matmul": {"bfloat16": 400 * GFLOP, "float32": 200 * GFLOP},
                "products": {"bfloat16": 0.05},
                "copy": 3e10,
                "flops_per_token": 1 * GFLOP,
                "head_flops_per_token": 0.25 * GFLOP,
            }
        ],
        "measurements": [
            measurement("sample-48", "vllm-fast", 6.0),
            measurement("sample-48", "mint", 3.0),
            measurement("sample-48", "vllm-slow", 60.0),
            measurement("sample-48", "mint", 3.0),
            measurement("sample-16", "vllm-fast", 2.0),
            measurement("sample-16", "mint", 1.4),
            measurement("step-16", "mint", 3.0, **step),
        ],
    }  # fmt: skip


def by_key(rows: list[Row]) -> dict[str, Row]:
    return {row.key: row for row in rows}


def test_a_ratio_is_to_the_fastest_contender_of_a_family(cpu: dict[str, Any]) -> None:
    row = by_key(report.make_rows(cpu))["cpu.sample-48.vllm"]
    assert (row.figure, row.ratio, row.verdict) == (2.0, "2.00×", MET)
    assert row.against == "vllm at its best: 80.0 tok/s"


def test_a_measurement_of_a_peer_is_compared_with_the_next_one_of_mint(
    cpu: dict[str, Any],
) -> None:
    cpu["measurements"] = [
        measurement("sample-48", "vllm-fast", 6.0),
        measurement("sample-16", "mint", 0.1),
        measurement("sample-48", "mint", 3.0),
        measurement("sample-48", "mint", 1.0),
        measurement("sample-48", "vllm-fast", 8.0),
        measurement("sample-48", "mint", 2.0),
    ]
    assert CpuResult(cpu).ratios("sample-48", "vllm-fast") == [2.0, 4.0]


def test_the_worst_round_has_a_target_of_its_own(cpu: dict[str, Any]) -> None:
    cpu["measurements"] += [
        measurement("sample-48", "vllm-fast", 3.3),
        measurement("sample-48", "mint", 3.0),
    ]
    row = by_key(report.make_rows(cpu))["cpu.sample-48.worst"]
    assert row.figure == pytest.approx(1.1)
    assert row.verdict == MISSED


def test_a_target_without_a_peer_is_not_measured(cpu: dict[str, Any]) -> None:
    rows = by_key(report.make_rows(cpu))
    assert rows["cpu.sample-48.transformers"].verdict == UNKNOWN
    assert rows["cpu.train.peft"].verdict == UNKNOWN


def test_the_share_while_decoding_leaves_prompts_and_http_out(cpu: dict[str, Any]) -> None:
    # 10 answers grow from 16 to 48 tokens in 1.6 s; their products need 0.8 s at 400 GFLOP/s
    assert CpuResult(cpu).decode_share == pytest.approx(0.5)


def test_exact_is_held_against_the_rate_of_float32(cpu: dict[str, Any]) -> None:
    cpu["mint"]["precision"] = "exact"
    assert CpuResult(cpu).decode_share == pytest.approx(1.0)


def test_the_ceiling_counts_prompts_once_and_the_head_for_answers_only(
    cpu: dict[str, Any],
) -> None:
    # 20 prompt tokens and 480 of answers through the layers, 480 through the head
    needed = (500 * 0.75 + 480 * 0.25) / 400
    assert CpuResult(cpu).matmul_seconds(500, 480) == pytest.approx(needed)


def test_an_answer_beside_training_is_compared_with_one_without(cpu: dict[str, Any]) -> None:
    assert "cpu.beside" not in by_key(report.make_rows(cpu)), "results of before have none"
    cpu["beside"] = {"beside": [0.3, 0.2, 0.9], "alone": [0.1, 0.2], "training": 1.2, "tokens": 16}
    row = by_key(report.make_rows(cpu))["cpu.beside"]
    assert row.mint == "0.30 (0.20 to 0.90) s"
    assert row.ratio == "2.00×"


def test_the_gap_has_a_target_where_exactness_was_asked_for(cpu: dict[str, Any]) -> None:
    cpu["gap"] = {"mean": 5e-4, "largest": 0.02, "tokens": 480}
    assert by_key(report.make_rows(cpu))["cpu.gap.largest"].verdict == ""
    cpu["mint"]["precision"] = "exact"
    assert by_key(report.make_rows(cpu))["cpu.gap.largest"].verdict == MISSED


def test_a_step_is_reported_with_its_parts(cpu: dict[str, Any]) -> None:
    rows = by_key(report.make_rows(cpu))
    assert rows["cpu.step"].verdict == MET
    assert rows["cpu.step.handoff"].mint == "0.50 s"


def test_a_contender_that_failed_is_named_below_the_table(cpu: dict[str, Any]) -> None:
    assert "peft at its best failed: ran out of memory" in report.render(cpu, {})


def test_missed_targets_have_their_reasons(cpu: dict[str, Any]) -> None:
    text = report.render(cpu, {"cpu.sample-16.vllm": "vLLM shares more here"})
    assert "answers of 16 tokens: vLLM shares more here" in text
    assert "no reason was written down" in report.render(cpu, {})


def test_a_result_with_nothing_in_it_still_makes_a_table(cpu: dict[str, Any]) -> None:
    cpu |= {"measurements": [], "ceilings": [], "contenders": {}}
    assert all(row.verdict in ("", UNKNOWN) for row in report.make_rows(cpu))
    assert report.render_text(cpu)


# ---- the GPU -------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> dict[str, Any]:
    speeds = {"1": 500.0, "8": 4_000.0, "48": 17_000.0, "256": 60_000.0, "512": 58_000.0}
    sizes = vars(SHAPES["0.6b"].sizes)
    return {
        "kind": "gpu",
        "date": "2026-11-15T12:00:00+00:00",
        "shape": "0.6b",
        "sizes": {**sizes, "answers": list(sizes["answers"])},
        "machine": {"device": "NVIDIA H200", "torch": "2.11", "transformers": "5.17"},
        "settings": {"precision": ["auto", "exact"], "rank": 16},
        "sections": {
            "ceilings": {"matmul": {"bfloat16": 7.9e14}, "copy": 4.3e12},
            "load": {"plan": {"precision": "half"}},
            "peers": {"generate": {"48": {"tokens_per_second": 850.0}}},
            "sampling": {
                answers: {"tokens_per_second": speed, "share_of_bound": 0.5}
                for answers, speed in speeds.items()
            },
            "training": {"error": "OutOfMemoryError: 200 GiB"},
            "gap": {"mean": 5e-4, "largest": 0.05},
            "gap-exact": {"mean": 1e-6, "largest": 1e-5},
        },
    }


def test_the_gpu_s_rates_have_targets_and_ratios(gpu: dict[str, Any]) -> None:
    rows = by_key(report.make_rows(gpu))
    assert rows["gpu.0.6b.sampling.256"].verdict == MET
    assert rows["gpu.0.6b.sampling.48"].verdict == MISSED
    assert rows["gpu.0.6b.sampling.48"].ratio == "20.00×"
    assert rows["gpu.0.6b.sampling.8"].verdict == ""


def test_a_section_that_failed_loses_only_its_own_rows(gpu: dict[str, Any]) -> None:
    rows = by_key(report.make_rows(gpu))
    assert rows["gpu.0.6b.training.cross_entropy"].verdict == UNKNOWN
    assert "training failed: OutOfMemoryError: 200 GiB" in report.render(gpu, {})


def test_growth_is_the_largest_rise_of_a_token_s_cost(gpu: dict[str, Any]) -> None:
    row = by_key(report.make_rows(gpu))["gpu.0.6b.growth"]
    assert row.figure == pytest.approx(60 / 58)
    assert row.verdict == MET


def test_each_precision_has_its_gap(gpu: dict[str, Any]) -> None:
    rows = by_key(report.make_rows(gpu))
    assert rows["gpu.0.6b.gap.auto.mean"].verdict == MET
    assert rows["gpu.0.6b.gap.auto.largest"].verdict == MISSED
    assert rows["gpu.0.6b.gap.exact.largest"].verdict == MET
    assert "auto (half)" in rows["gpu.0.6b.gap.auto.mean"].what


def test_the_large_shape_is_held_against_its_bounds(gpu: dict[str, Any]) -> None:
    gpu["shape"], gpu["sizes"]["answers"] = "8b", [1, 64]
    gpu["sections"]["sampling"]["64"] = {"tokens_per_second": 3_000.0, "share_of_bound": 0.4}
    row = by_key(report.make_rows(gpu))["gpu.8b.sampling.64"]
    assert (row.target, row.verdict) == (gpu_rows.LARGE_SAMPLING, MISSED)


# ---- the page ------------------------------------------------------------------------------------


def test_the_readme_has_a_place_for_every_kind() -> None:
    text = report.README.read_text()
    for kind in report.KINDS:
        assert re.search(f"<!-- bench:{kind} -->.*<!-- /bench:{kind} -->", text, re.DOTALL)


def test_tables_are_written_between_the_markers_and_again(
    cpu: dict[str, Any], gpu: dict[str, Any], tmp_path: Path
) -> None:
    page, results = tmp_path / "README.md", tmp_path / "results"
    page.write_text(report.README.read_text())
    results.mkdir()
    for result in (cpu, gpu):
        (results / f"{result['kind']}.json").write_text(json.dumps(result))
    for _ in range(2):
        report.main(["--results", str(results), "--readme", str(page)])
    text = page.read_text()
    assert text.count("sampling, 2 × 5 answers of 48 tokens |") == 2
    assert text.count("sampling, 256 answers") == 1
    assert "There are no figures" not in text
    assert "## The rewards" in text


def test_the_keys_for_reasons_are_printed(
    cpu: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpu.json").write_text(json.dumps(cpu))
    report.main(["--results", str(tmp_path), "--keys"])
    assert re.search(r"^cpu\.sample-16\.vllm +\*\*missed", capsys.readouterr().out, re.MULTILINE)


def test_a_page_without_markers_says_what_to_write() -> None:
    with pytest.raises(ValueError, match="<!-- bench:cpu -->"):
        report.replace_between("nothing", "cpu", "table")


# ---- figures and targets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "figure", "met"),
    [
        (Target(2.0, ratio), 2.0, True),
        (Target(2.0, ratio), 1.99, False),
        (Target(4.0, seconds, at_least=False), 4.0, True),
        (Target(4.0, seconds, at_least=False), 4.1, False),
    ],
)
def test_a_target_is_met_at_its_bound(target: Target, figure: float, met: bool) -> None:
    assert target.is_met(figure) is met


def test_units_that_differ_are_all_written() -> None:
    assert Spread(0.2, 0.05, 0.3).show(seconds) == "0.20 s (50.0 ms to 0.30 s)"
    assert Spread.of([]) is None
    assert Row("k", "w", target=Target(1.0, rate)).verdict == UNKNOWN


# ---- who is measured -----------------------------------------------------------------------------


def test_a_family_selects_all_its_variants_and_a_name_only_one() -> None:
    assert [c.name for c in find_contenders(["vllm-float32-merged"], [0])] == [
        "vllm-float32-merged"
    ]
    vllm = find_contenders(["vllm"], [0, 1])
    assert {c.name for c in vllm} == {
        f"vllm-{dtype}-{how}" for dtype in ("float32", "bfloat16") for how in ("lora", "merged")
    }
    assert vllm[0].process.variables["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    with pytest.raises(ValueError, match=r"there is no nobody\. Choose of vllm"):
        find_contenders(["nobody"], [0])


def test_contenders_of_a_session_stand_together() -> None:
    sessions = [c.session for c in find_contenders(["vllm", "transformers", "peft", "trl"], [0])]
    assert len({*sessions}) == 1 + sum(a != b for a, b in pairwise(sessions))


def test_a_side_sees_nothing_that_was_set_for_mint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINT_BASE_URL", "http://elsewhere")
    monkeypatch.setenv("MINT_CACHE", "/models")
    variables = environment({"MINT_PRECISION": "exact"})
    assert "MINT_BASE_URL" not in variables
    assert (variables["MINT_CACHE"], variables["MINT_PRECISION"]) == ("/models", "exact")
