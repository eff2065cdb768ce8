"""``mint export``: trained weights as files that other programs load."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mint.commands.shared.names import ADAPTER_CONFIG, find
from mint.commands.shared.options import HomeOption, load_settings
from mint.commands.shared.output import Mistake
from mint.commands.shared.remote import UrlOption
from mint.commands.shared.transfers import fetch

if TYPE_CHECKING:
    from mint.engine.adapters.merge import Check

ADAPTER_FILES = ("adapter_model.safetensors", ADAPTER_CONFIG)


class Dtype(StrEnum):
    """The formats of weights that are written."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


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
        typer.Option(
            "--check/--no-check",
            help="Load the exported files and compare their logprobs with the adapter's.",
        ),
    ] = True,
    home: HomeOption = None,
    url: UrlOption = None,
) -> None:
    """Export an adapter in PEFT format or, with --merge, a whole model in Hugging Face format.

    PEFT or transformers loads the result; its logprobs on a few texts are compared with those of
    the adapter in mint's engine, and the largest difference is printed.
    """
    target = to.expanduser()
    with new_folder(target) as draft, _adapter_of(checkpoint, url) as adapter:
        if merge:
            _merge(adapter, draft, base, dtype, home, check)
        else:
            _copy(adapter, draft, base, dtype, home, check)
    typer.echo(str(to))


@contextmanager
def _adapter_of(checkpoint: str, url: str | None) -> Iterator[Path]:
    """A folder with the adapter's files, for as long as it is needed."""
    if (Path(checkpoint) / ADAPTER_CONFIG).is_file():
        yield _complete(Path(checkpoint))
        return
    named = find(checkpoint, url)
    if not named.is_checkpoint:
        raise Mistake(
            f"{checkpoint} is not a checkpoint, a run directory or a PEFT folder. "
            "`mint checkpoints list` and `mint runs list` show yours."
        )
    if named.model != checkpoint:
        _say(f"exporting {named.model}")
    with tempfile.TemporaryDirectory(prefix="mint-export-") as scratch:
        fetch(named.remote, named.model, Path(scratch))
        yield _complete(Path(scratch))


def _complete(folder: Path) -> Path:
    from mint.service.checkpoints.peft import AdapterFiles

    missing = [name for name in ADAPTER_FILES if not (folder / name).is_file()]
    if missing:
        raise Mistake(f"{folder} has no {missing[0]}, so it is not a PEFT adapter.")
    if not json.loads((folder / ADAPTER_CONFIG).read_text()).get("target_parameters"):
        AdapterFiles.read(folder)  # refuses what is no plain LoRA
    return folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its place when all went well."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Mistake(f"{target} already exists and is not empty. Choose another: --to FOLDER")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)
        for file in draft.iterdir():
            file.chmod(0o644)  # transformers keeps weights from other users
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _merge(
    adapter: Path,
    draft: Path,
    base: str | None,
    dtype: Dtype | None,
    home: Path | None,
    check: bool,
) -> None:
    from mint.engine.adapters.merge import check_merged, merge

    folder = _base_folder(adapter, base, home)
    hide_progress_bars()
    _say(f"merging into {folder}")
    written = merge(folder, adapter, draft, dtype.value if dtype else None)
    copy_tokenizer(folder, draft)
    if check:
        _report(check_merged(folder, adapter, draft), written)


def _copy(
    adapter: Path,
    draft: Path,
    base: str | None,
    dtype: Dtype | None,
    home: Path | None,
    check: bool,
) -> None:
    if dtype is None:
        for name in ADAPTER_FILES:
            shutil.copyfile(adapter / name, draft / name)
    else:
        from mint.engine.adapters.merge import convert_adapter

        convert_adapter(adapter, draft, dtype.value)
    if base is not None:
        _set_base(draft / ADAPTER_CONFIG, base)
    if check:
        _check_adapter(adapter, draft, base, dtype, home)
    if ".lm_head." in _tensor_names(adapter):
        _say(
            "this adapter trains the output layer. If the model's embeddings are tied, run the "
            "adapter on top of its base model (vLLM, PEFT), or use --merge; other programs cannot "
            "merge it correctly (docs/export.md)"
        )


def _check_adapter(
    adapter: Path, draft: Path, base: str | None, dtype: Dtype | None, home: Path | None
) -> None:
    """Compare logprobs where the base model is on this machine; elsewhere say what is missing."""
    from mint.catalog import ModelNotFound
    from mint.engine.adapters.merge import check_adapter

    try:
        folder = _base_folder(adapter, base, home, download=False)
    except ModelNotFound:
        name = _base_name(adapter, base)
        _say(
            f"not checked: {name} is not on this machine. To check the adapter, run "
            f"`mint models get {name}` (or pass --base FOLDER) and export again"
        )
        return
    hide_progress_bars()
    _report(check_adapter(folder, adapter, draft), dtype.value if dtype else "float32")


def _base_folder(
    adapter: Path, base: str | None, home: Path | None, *, download: bool = True
) -> Path:
    from mint.catalog import Catalog

    settings = load_settings(home)
    catalog = Catalog(aliases=settings.aliases, cache=settings.cache)
    return catalog.locate(_base_name(adapter, base), download=download)


def _base_name(adapter: Path, base: str | None) -> str:
    return base or str(
        json.loads((adapter / ADAPTER_CONFIG).read_text())["base_model_name_or_path"]
    )


def copy_tokenizer(folder: Path, draft: Path) -> None:
    """Copy what a model's tokenizer is made from."""
    from mint.catalog import TOKENIZER_FILES

    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, draft / name)


def hide_progress_bars() -> None:
    """Keep transformers from drawing bars for files that are read and written in seconds."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]


def _set_base(config: Path, base: str) -> None:
    found = json.loads(config.read_text())
    config.write_text(json.dumps({**found, "base_model_name_or_path": base}, indent=2))


def _tensor_names(adapter: Path) -> str:
    from mint.service.checkpoints.tensors import Tensors

    return " ".join(Tensors.open(adapter / ADAPTER_FILES[0]).entries)


def _report(check: Check, dtype: str) -> None:
    check.require(dtype)
    _say(
        f"checked in {dtype} with {check.by}: logprobs of {check.tokens} tokens differ from the "
        f"adapter's by at most {check.largest:.2g} (the adapter itself changes them by up to "
        f"{check.moved:.2g})"
    )


def _say(text: str) -> None:
    print(f"mint: {text}", file=sys.stderr, flush=True)
