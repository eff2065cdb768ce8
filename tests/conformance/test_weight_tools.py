"""The cookbook's weight tools take our checkpoints, and what they write answers as the adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mint.cli import app
from mint.engine.adapters.merge import check_adapter, check_merged
from tests.engine.adapters.test_merge import make_adapter
from tests.tiny import build_model

from .environments import COOKBOOK

pytestmark = pytest.mark.slow


def use_tools(model: Path, adapter: Path, folder: Path) -> str:
    folder.mkdir()
    return COOKBOOK.run("weights.py", str(model), str(adapter), str(folder), folder=folder)


@pytest.mark.parametrize(
    ("family", "unembed"), [("llama", True), ("qwen3", False)], ids=["untied", "tied"]
)
def test_an_adapter_is_converted_and_merged(family: str, unembed: bool, tmp_path: Path) -> None:
    base = build_model(tmp_path / family, family)
    adapter = make_adapter(base, tmp_path / "adapter", train_unembed=unembed)
    assert use_tools(base, adapter, tmp_path / "out") == "merged\n"
    assert check_merged(base, adapter, tmp_path / "out" / "merged").largest <= 1e-3
    assert check_adapter(base, adapter, tmp_path / "out" / "adapter").largest <= 1e-4


def mint(*typed: str | Path) -> None:
    done = CliRunner().invoke(app, [str(each) for each in typed])
    assert done.exit_code == 0, done.output


def test_a_trained_output_layer_of_a_tied_model_is_merged_into_an_untied_one(
    tmp_path: Path,
) -> None:
    """With the commands of docs/export.md, "Tied embeddings"."""
    base = build_model(tmp_path / "qwen3", "qwen3")
    checkpoint = make_adapter(base, tmp_path / "checkpoint")
    home, adapter = ("--home", tmp_path / "home"), tmp_path / "adapter"
    mint("models", "add", "tiny/tied", base, *home)
    mint("export", checkpoint, "--to", adapter, "--base", base, *home)
    mint("models", "untie", "tiny/tied", "--to", tmp_path / "untied", *home)
    assert use_tools(tmp_path / "untied", adapter, tmp_path / "out") == "merged\n"
    assert check_merged(base, adapter, tmp_path / "out" / "merged").largest <= 1e-3
    refused = use_tools(base, adapter, tmp_path / "tied")  # rather than change the embedding too
    assert refused.startswith("refused: ")
    assert "lm_head" in refused
