"""``mint init``: write a small project to start from, or the quickstart scripts."""

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
    files = project_files(source / "project", model)
    if quickstart:
        files = {Path(script.name): script.read_text() for script in sorted(source.glob("*.py"))}
    write_new(folder, files)
    print(f"Wrote {', '.join(map(str, files))} to {folder}.")
    enter = [] if folder.resolve() == Path.cwd() else [f"cd {folder}"]
    start = f"python {next(iter(files))}" if quickstart else "mint train +experiment=mine"
    print("Start with:", *enter, start, sep="\n  ")


def project_files(source: Path, model: str) -> dict[Path, str]:
    """Return the files of the project with their content."""
    paths = sorted(path for path in source.rglob("*") if path.suffix in _SUFFIXES)
    files = {path.relative_to(source): path.read_text() for path in paths}
    return {path: text.replace(DEFAULT_MODEL, model) for path, text in files.items()}


def write_new(folder: Path, files: dict[Path, str]) -> None:
    """Write files, unless one of them exists."""
    there = [path for path in files if (folder / path).exists()]
    if there:
        raise Mistake(
            f"{folder / there[0]} already exists; nothing was written. Choose another folder: "
            "mint init my-project"
        )
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
