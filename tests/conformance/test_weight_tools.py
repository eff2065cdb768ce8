"""The cookbook's weight tools take our checkpoints, and what they write answers as the adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mint.cli import app
from mint.engine.adapters.merge import check_adapter, check_merged
from tests.engine.adapters.test_merge import make_adapter
from tests.tiny import build_model

from .environments import COOKBOOK, REPOSITORY

pytestmark = pytest.mark.slow


def use_tools(model: Path, adapter: Path, folder: Path, strategy: str = "auto") -> str:
    folder.mkdir()
    given = str(model), str(adapter), str(folder), strategy
    return COOKBOOK.run("weights.py", *given, folder=folder)


@pytest.mark.parametrize(
    ("family", "unembed"), [("llama", True), ("qwen3", False)], ids=["untied", "tied"]
)
def test_an_adapter_is_converted_and_merged(family: str, unembed: bool, tmp_path: Path) -> None:
    base = build_model(tmp_path / family, family)
    adapter = make_adapter(base, tmp_path / "adapter", train_unembed=unembed)
    assert use_tools(base, adapter, tmp_path / "out") == "merged\n"
    assert check_merged(base, adapter, tmp_path / "out" / "merged").largest <= 1e-3
    assert check_adapter(base, adapter, tmp_path / "out" / "adapter").largest <= 1e-4


def mint(*typed: str | Path) -> str:
    done = CliRunner().invoke(app, [str(each) for each in typed])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_trained_output_layer_of_a_tied_model_is_merged_into_an_untied_one(
    tmp_path: Path,
) -> None:
    """With the commands of docs/export.md, "Tied embeddings"."""
    base = build_model(tmp_path / "qwen3", "qwen3")
    checkpoint = make_adapter(base, tmp_path / "checkpoint")
    home, adapter = ("--home", tmp_path / "home"), tmp_path / "adapter"
    mint("models", "add", "tiny/tied", base, *home)
    said = mint("export", checkpoint, "--to", adapter, "--base", "tiny/tied", *home)
    assert "mint models untie tiny/tied --to FOLDER" in said
    mint("models", "untie", "tiny/tied", "--to", tmp_path / "untied", *home)
    for strategy in ("auto", "full"):
        out = tmp_path / strategy
        assert use_tools(tmp_path / "untied", adapter, out, strategy) == "merged\n"
        assert check_merged(base, adapter, out / "merged").largest <= 1e-3
    refused = use_tools(base, adapter, tmp_path / "tied")  # rather than change the embedding too
    assert refused == (
        "refused: Adapter weight 'base_model.model.lm_head.weight' mapped to 'lm_head.weight' "
        "which does not exist in the model state dict\n"
    )
    page = (REPOSITORY / "docs" / "export.md").read_text()
    assert refused.removeprefix("refused: ").strip() in " ".join(page.split())


def test_the_cookbook_changes_the_embedding_of_a_tied_model_when_it_merges_the_model_whole(
    tmp_path: Path,
) -> None:
    """The warning of docs/export.md against ``merge_strategy="full"`` is still true."""
    base = build_model(tmp_path / "qwen3", "qwen3")
    adapter = make_adapter(base, tmp_path / "adapter")
    assert use_tools(base, adapter, tmp_path / "out", "full") == "merged\n"
    assert check_merged(base, adapter, tmp_path / "out" / "merged").largest > 0.1
    body_only = make_adapter(base, tmp_path / "body", train_unembed=False)
    assert use_tools(base, body_only, tmp_path / "body-out", "full") == "merged\n"
    assert check_merged(base, body_only, tmp_path / "body-out" / "merged").largest <= 1e-3
