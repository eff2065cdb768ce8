"""The README's training loop runs as written, and its tables tell the truth."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mint.engine.training.losses import LOSSES

README = (Path(__file__).parents[2] / "README.md").read_text()
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_the_training_loop_runs_as_written(embedded: dict[str, str], tiny_model: Path) -> None:
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    environment = {**embedded, "MINT_MODELS": f"{MODEL}={tiny_model}"}
    done = subprocess.run(
        [sys.executable, "-c", block], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Saved: tinker://\S+/weights/final$", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_first_example_of_the_page_on_rl_runs_as_it_stands(
    embedded: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/rl.md").read_text()
    block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    environment = {**embedded, "MINT_MODELS": f"{MODEL}={tiny_model}"}
    done = subprocess.run(
        [sys.executable, "-c", block],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^tinker://\S+$", done.stdout.strip().splitlines()[-1])


def test_every_loss_is_named() -> None:
    assert all(f"`{name}`" in README for name in LOSSES)


def test_every_picture_and_page_that_it_links_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[2] / target).exists(), target
