"""The commands to a measured side, and the work that all sides share."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.cpu.peer import Peer, PeerFailed
from benchmarks.cpu.workload import LORA_RANK, Workload, make_workload

REPOSITORY = Path(__file__).resolve().parents[2]
SIDE = """
import os, sys, time
from benchmarks.cpu.answering import serve

def prepare():
    print("a library that prints")
    if "broken" in sys.argv:
        raise RuntimeError("no such model")
    return {
        "double": lambda number: {"number": 2 * number},
        "fail": lambda: 1 / 0,
        "end": lambda: os._exit(3),
        "hang": lambda: time.sleep(600),
    }, {"version": "1"}

serve(prepare)
"""


def start(tmp_path: Path, *arguments: str) -> Peer:
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", SIDE, *arguments]
    return Peer("side", command, variables, tmp_path / "side.log", stop_limit_s=1.0)


def test_a_side_answers_whatever_its_libraries_print(tmp_path: Path) -> None:
    with start(tmp_path) as side:
        assert side.facts == {"version": "1"}
        assert side.ask("double", number=21) == {"number": 42}
        assert side.ask("double", number=4) == {"number": 8}
    assert "a library that prints" in (tmp_path / "side.log").read_text()


def test_a_side_is_stopped_between_commands(tmp_path: Path) -> None:
    with start(tmp_path) as side:
        side.ask("double", number=1)
        stopped = os.waitid(os.P_PID, side._process.pid, os.WSTOPPED | os.WNOWAIT)
        assert stopped is not None
        assert stopped.si_status == signal.SIGSTOP


def test_a_failure_names_the_side_and_its_log_and_the_side_keeps_running(tmp_path: Path) -> None:
    with start(tmp_path) as side:
        with pytest.raises(PeerFailed, match=r"side failed: ZeroDivisionError.*side\.log"):
            side.ask("fail")
        assert side.ask("double", number=1) == {"number": 2}


def test_a_side_that_ends_or_hangs_is_a_failure(tmp_path: Path) -> None:
    with start(tmp_path) as side, pytest.raises(PeerFailed, match="side ended"):
        side.ask("end")
    with start(tmp_path) as side, pytest.raises(PeerFailed, match="did not answer in 0 s"):
        side.ask("hang", limit_s=0.2)


def test_a_side_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="RuntimeError: no such model"):
        start(tmp_path, "broken")


def test_all_sides_get_the_same_work(tiny_model: Path, tmp_path: Path) -> None:
    work = make_workload(tiny_model, tmp_path, prompts=3, group=2, answer_tokens=4)
    assert Workload.load(work.save(tmp_path)) == work
    assert (
        make_workload(tiny_model, tmp_path, prompts=3, group=2, answer_tokens=4).answers_P_G_T
        == work.answers_P_G_T
    )
    assert work.answers == 6
    assert work.train_tokens == sum(2 * (len(prompt) + 3) for prompt in work.prompts_P_T)


def test_the_adapter_is_one_that_peft_loads(tiny_model: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    work = make_workload(tiny_model, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    model = peft.PeftModel.from_pretrained(base, work.adapter)
    loaded = {n: p for n, p in model.named_parameters() if "lora_" in n}
    config = json.loads((tiny_model / "config.json").read_text())
    assert len(loaded) == 2 * 7 * config["num_hidden_layers"]
    assert all(p.abs().max() > 0 and LORA_RANK in p.shape for p in loaded.values())
