"""The wheel, installed without the clone: every file is in it, and its commands work."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installed import ROOT, Installed

pytestmark = pytest.mark.slow

SMALL = (
    "training.steps=1",
    "training.batch_size=2",
    "sampling.group_size=2",
    "sampling.max_tokens=4",
    "evaluation.holdout_size=2",
)
SETTINGS = {
    "MINT_LORA_RANK": "4",
    "MINT_CUSTOM_REWARD_STEPS": "1",
    "MINT_CUSTOM_REWARD_BATCH": "2",
    "MINT_CUSTOM_REWARD_GROUP": "4",
    "MINT_CUSTOM_REWARD_MAX_TOKENS": "4",
}


def files_below(*folders: str) -> set[str]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    made = ("__pycache__", ".egg-info", ".pyc", ".DS_Store")
    return {
        str(path.relative_to(ROOT)) for path in found if not any(name in str(path) for name in made)
    }


def test_the_wheel_has_every_file_of_the_package(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    bundled = {f"mint/bundled/{name}" for name in files_below("conf", "demos", "quickstart")}
    ours = {name.removeprefix("src/") for name in files_below("src/mint", "src/agent_tunix")}
    assert ours | bundled <= names


def test_the_source_distribution_has_what_a_wheel_is_built_from(installed: Installed) -> None:
    with tarfile.open(installed.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert files_below("src/mint", "src/agent_tunix", "conf", "demos", "quickstart") <= names


def test_the_commands_are_those_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    where = "import mint, agent_tunix.rewards; print(mint.__file__)"
    found = installed.run(tmp_path, "python", "-c", where).strip()
    assert Path(found).is_relative_to(installed.bin.parent)
    out = installed.run(tmp_path, "mint", "--help")
    for command in ("init", "train", "eval", "serve", "sample", "export"):
        assert f" {command} " in out


def test_training_works_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    model = f"model.base_model={installed.model}"
    out = installed.run(tmp_path, "mint", "train", model, *SMALL, **SETTINGS)
    assert "Saved: tinker://" in out


def test_a_new_project_trains(installed: Installed, tmp_path: Path) -> None:
    installed.run(tmp_path, "mint", "init", "project", "--model", str(installed.model))
    folder = tmp_path / "project"
    out = installed.run(folder, "mint", "train", "+experiment=mine", *SMALL, **SETTINGS)
    assert "Saved: tinker://" in out


def test_the_quickstart_runs(installed: Installed, tmp_path: Path) -> None:
    installed.run(tmp_path, "mint", "init", "--quickstart")
    settings = {**SETTINGS, "MINT_BASE_MODEL": str(installed.model)}
    out = installed.run(tmp_path, "python", "custom_reward.py", **settings)
    assert "Saved: tinker://" in out


def test_the_small_model_of_the_readme_is_converted(installed: Installed, tmp_path: Path) -> None:
    cache = {"MINT_CACHE": str(tmp_path / "cache")}
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    folder = Path(installed.run(tmp_path, "mint", "models", "get", name, **cache).strip())
    assert (folder / "config.json").is_file()


def test_a_missing_model_is_one_message(installed: Installed, tmp_path: Path) -> None:
    process = installed.start(tmp_path, "mint", "train", "model.base_model=/no/such/model", *SMALL)
    try:
        _, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode != 0
    assert "/no/such/model" in errors
    assert "Traceback" not in errors
