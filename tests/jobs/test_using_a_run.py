"""After training: a run is sampled from and exported by the name of its directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mint.cli import main
from mint.rl.recording.directory import SERVICE
from tests.service_fixture import MODEL, LiveService
from tests.tiny import build_model

from .conftest import CONF, TASK, Command, Ended


@pytest.fixture
def command(
    folder: Path,
    live_service: LiveService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Runs ``mint ARGUMENTS`` on a machine that has the tiny model."""
    tiny = live_service.home.parent / "tiny" / "llama"
    monkeypatch.setenv("MINT_MODELS", f"{MODEL}={tiny}")
    monkeypatch.setenv("MINT_HOME", str(folder / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["mint", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return Ended(int(end.value.code or 0), printed.out, printed.err)

    return run


@pytest.mark.slow
def test_a_run_directory_is_sampled_as_it_was_trained_and_exported(
    train: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = train(*TASK, "logging.run_dir=run", "model.rank=2", 'sampling.stop=["~~"]')
    assert "Sample from it: mint sample -m run" in ended.out
    assert "mint export run --to FOLDER --merge" in ended.out

    monkeypatch.delenv("MINT_BASE_URL")  # the run directory knows its service
    answer = command("sample", "-m", "run", "12:", "--seed", "1", "--json")
    assert answer.code == 0, answer.err
    assert "plain text, no chat template" in answer.err
    assert "stop '~~', at most 4 tokens" in answer.err
    asked = json.loads(answer.out)
    assert re.fullmatch(r"tinker://\S+/weights/step-000002", asked["model"])
    assert asked["object"] == "text_completion"
    assert asked["usage"]["completion_tokens"] <= 4
    assert json.loads(command("sample", "-m", "run", "12:", "--chat", "--json").out)["object"] == (
        "chat.completion"
    )

    merged = command("export", "run", "--to", "merged", "--merge", "--dtype", "bfloat16")
    assert merged.code == 0, merged.err
    assert merged.out == "merged\n"
    assert re.search(r"checked in bfloat16 with transformers: logprobs of \d+ tokens", merged.err)
    assert {f"{f.stat().st_mode & 0o777:o}" for f in (folder / "merged").iterdir()} == {"644"}
    model = AutoModelForCausalLM.from_pretrained(folder / "merged")
    assert model.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(folder / "merged").chat_template

    adapter = command("export", "run", "--to", "adapter")
    assert adapter.code == 0, adapter.err
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == (MODEL, 2)
    assert "output layer" in adapter.err
    assert "%|" not in merged.err + adapter.err  # the progress bars of transformers
    figure = re.search(r"checked in float32 with PEFT .* at most (\S+) \(the adapter", adapter.err)
    assert figure is not None, adapter.err
    assert float(figure[1]) <= 1e-3
    unknown = command("export", "adapter", "--to", "elsewhere", "--base", "no/such-model")
    assert unknown.code == 0, unknown.err
    assert "not checked: no/such-model is not on this machine" in unknown.err
    unchecked = command("export", "adapter", "--to", "unchecked", "--no-check")
    assert (unchecked.code, "checked" in unchecked.err) == (0, False)
    again = command("export", "adapter", "--to", "again", "--merge")  # a PEFT folder, no service
    assert again.code == 0, again.err
    assert "checked in float32" in again.err

    taken = command("export", "run", "--to", "merged")
    assert (taken.code, "already exists and is not empty" in taken.err) == (2, True)
    wrong = build_model(folder / "wide", hidden_size=64)
    refused = command("export", "adapter", "--to", "wide-one", "--merge", "--base", str(wrong))
    assert (refused.code, "does not fit this base model" in refused.err) == (2, True)
    assert not list(folder.glob(".wide-one*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["export", "nowhere", "--to", "out"],
            "not a checkpoint, a run directory or a PEFT folder",
        ),
        (["export", "half", "--to", "out"], "has no checkpoint yet"),
        (["sample", "-m", "peft", "x"], "mint checkpoints upload peft"),
        (["export", "peft", "--to", "out"], "adapter_model.safetensors"),
        (["export", "tinker://x:train:0/weights/a", "--to", "out"], "mint checkpoints list"),
    ],
)
def test_what_cannot_be_used_is_one_message(
    command: Command, folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "half").mkdir()
    (folder / "half" / "config.yaml").write_text("task: x\n")
    (folder / "peft").mkdir()
    (folder / "peft" / "adapter_config.json").write_text("{}")
    said = command(*arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert "Traceback" not in said.err
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_a_run_of_the_embedded_service_needs_no_service(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINT_BASE_URL")
    monkeypatch.setenv("MINT_PRECISION", "exact")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "mint.cli", *arguments]
        return subprocess.run(line, capture_output=True, text=True, env=dict(os.environ))

    trained = run(
        "train", "--config-dir", str(CONF), *TASK, "logging.run_dir=run", "training.steps=1"
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads((folder / "run" / SERVICE).read_text()) == {"home": str(folder / "home")}
    monkeypatch.setenv("MINT_PORT", "9")  # where nothing listens
    [listed] = json.loads(run("runs", "list", "--json").stdout)
    assert listed["user_metadata"]["run_dir"] == str(folder / "run")
    monkeypatch.setenv("MINT_HOME", str(folder / "another"))
    asked = run("sample", "-m", "run", "12:")
    assert asked.returncode == 0, asked.stderr
    assert "embedded service" in asked.stderr
