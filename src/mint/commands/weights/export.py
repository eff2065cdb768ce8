"""``mint export``: trained weights as files that other programs load."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mint.commands.shared.names import ADAPTER_CONFIG, find_weights
from mint.commands.shared.options import HomeOption, load_catalog
from mint.commands.shared.output import Mistake, say
from mint.commands.shared.remote import UrlOption
from mint.commands.shared.transfers import fetch

if TYPE_CHECKING:
    from mint.engine.adapters.merge import Check

ADAPTER_FILES = ("adapter_model.safetensors", ADAPTER_CONFIG)
_BASE = "base_model_name_or_path"
Dtype = Literal["float32", "bfloat16", "float16"]


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="A tinker:// path, a run directory (its best checkpoint, or its latest), "
            "a short name, or a PEFT folder."
        ),
    ],
    to: Annotated[Path, typer.Option("--to", help="The folder to create.", file_okay=False)],
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Write the whole model, with the adapter merged, in Hugging Face format.",
        ),
    ] = False,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Format of the weights. Default: unchanged.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Base model, by name or folder. Default: the one it was trained on."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(help="Load the exported files and compare their logprobs with the adapter's."),
    ] = True,
    home: HomeOption = None,
    url: UrlOption = None,
) -> None:
    """Export an adapter in PEFT format or, with --merge, a whole model in Hugging Face format.

    PEFT or transformers loads the result; its logprobs on a few texts are compared with those of
    the adapter in mint's engine, and the largest difference is printed.
    """
    with new_folder(to.expanduser()) as draft, _fetch_adapter(checkpoint, url) as adapter:
        model = base or str(json.loads((adapter / ADAPTER_CONFIG).read_text())[_BASE])
        if merge:
            _merge(load_catalog(home).locate(model), adapter, draft, dtype, check)
        else:
            _copy(adapter, draft, base, dtype)
            if check:
                _check_adapter(adapter, draft, model, dtype, home)
            _warn_about_output_layer(adapter, model)
    typer.echo(to)


@contextmanager
def _fetch_adapter(checkpoint: str, url: str | None) -> Iterator[Path]:
    """Yield a folder with the adapter's files."""
    if (Path(checkpoint) / ADAPTER_CONFIG).is_file():
        yield _check_files(Path(checkpoint))
        return
    remote, where = find_weights(checkpoint, url)
    if where.uri != checkpoint:
        say(f"exporting {where.uri}")
    with tempfile.TemporaryDirectory(prefix="mint-export-") as scratch:
        fetch(remote, where, Path(scratch))
        yield _check_files(Path(scratch))


def _check_files(folder: Path) -> Path:
    from mint.service.checkpoints.peft import AdapterFiles

    if not json.loads((folder / ADAPTER_CONFIG).read_text()).get("target_parameters"):
        AdapterFiles.read(folder)  # rejects anything but plain LoRA
    return folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces the target on success."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Mistake(f"{target} already exists and is not empty. Choose another: --to FOLDER")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)
        for file in draft.iterdir():
            file.chmod(0o644)  # transformers writes weights that only their owner can read
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _merge(folder: Path, adapter: Path, draft: Path, dtype: Dtype | None, check: bool) -> None:
    from mint.engine.adapters.merge import check_merged, merge

    hide_progress_bars()
    say(f"merging into {folder}")
    written = merge(folder, adapter, draft, dtype)
    copy_tokenizer(folder, draft)
    if check:
        _report(check_merged(folder, adapter, draft), written)


def _copy(adapter: Path, draft: Path, base: str | None, dtype: Dtype | None) -> None:
    """Copy an adapter, converted to another data type or base model if asked for."""
    if dtype is None:
        for name in ADAPTER_FILES:
            shutil.copyfile(adapter / name, draft / name)
    else:
        from mint.engine.adapters.merge import DTYPES
        from mint.engine.adapters.peft_files import convert_adapter

        convert_adapter(adapter, draft, DTYPES[dtype])
    if base is not None:
        config = draft / ADAPTER_CONFIG
        config.write_text(json.dumps({**json.loads(config.read_text()), _BASE: base}, indent=2))


def _check_adapter(
    adapter: Path, draft: Path, model: str, dtype: Dtype | None, home: Path | None
) -> None:
    """Compare logprobs if the base model is on this machine; otherwise print what is missing."""
    from mint.catalog import ModelNotFound
    from mint.engine.adapters.merge import check_adapter

    try:
        folder = load_catalog(home).locate(model, download=False)
    except ModelNotFound:
        say(
            f"not checked: {model} is not on this machine. To check the adapter, run "
            f"`mint models get {model}` (or pass --base FOLDER) and export again"
        )
        return
    hide_progress_bars()
    _report(check_adapter(folder, adapter, draft), dtype or "float32")


def _warn_about_output_layer(adapter: Path, model: str) -> None:
    from mint.service.checkpoints.tensors import Tensors

    if any(".lm_head." in name for name in Tensors.open(adapter / ADAPTER_FILES[0]).entries):
        say(
            "this adapter trains the output layer. If the model's embeddings are tied, run the "
            "adapter on top of its base model (vLLM, PEFT), or use --merge. Other programs merge "
            "it wrongly or not at all: for build_hf_model of tinker-cookbook, run `mint models "
            f"untie {model} --to FOLDER` and give it FOLDER as base_model (docs/export.md)"
        )


def copy_tokenizer(folder: Path, draft: Path) -> None:
    """Copy the files of a model's tokenizer."""
    from mint.catalog import TOKENIZER_FILES

    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, draft / name)


def hide_progress_bars() -> None:
    """Turn off the progress bars of transformers."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]


def _report(check: Check, dtype: str) -> None:
    check.require(dtype)
    say(
        f"checked in {dtype} with {check.by}: logprobs of {check.tokens} tokens differ from the "
        f"adapter's by at most {check.largest:.2g} (the adapter itself changes them by up to "
        f"{check.moved:.2g})"
    )
