"""``mint init``: write a small project to start from, or the quickstart scripts."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from mint.commands.shared.output import Mistake
from mint.jobs.bundled import bundled

HERE = Path()
DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SUFFIXES = (".py", ".jsonl", ".md", ".yaml")


def init(
    folder: Annotated[
        Path, typer.Argument(help="The folder to write to; created if needed.")
    ] = HERE,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The project's base model.")
    ] = DEFAULT_MODEL,
    quickstart: Annotated[
        bool, typer.Option("--quickstart", help="Write the quickstart scripts instead.")
    ] = False,
) -> None:
    """Write a small project: data, a reward, settings and a README."""
    source = bundled() / "quickstart"
    if quickstart:
        paths = sorted(source.glob("*.py"))
    else:
        source /= "project"
        paths = sorted(path for path in source.rglob("*") if path.suffix in _SUFFIXES)
    files = [path.relative_to(source) for path in paths]
    for file in files:
        if (folder / file).exists():
            raise Mistake(
                f"{folder / file} already exists; nothing was written. Choose another folder: "
                "mint init my-project"
            )
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        text = (source / file).read_text()
        (folder / file).write_text(text if quickstart else text.replace(DEFAULT_MODEL, model))
    print(f"Wrote {', '.join(map(str, files))} to {folder}.")
    enter = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    start = f"python {files[0]}" if quickstart else "mint train +experiment=mine"
    print("Start with:", *enter, start, sep="\n  ")
