"""``mint report``: a report on the rewards in a run directory."""

from pathlib import Path
from typing import Annotated

import typer

from mint.commands.shared.output import Mistake


def report(
    run_dir: Annotated[Path, typer.Argument(help="A run directory, such as runs/math-1a2b3c4d.")],
) -> None:
    """Write a report on a run's rewards: Markdown, HTML with plots, JSON and text."""
    from mint.rl.recording.report import write_report
    from mint.watch.directory.reader import NotARun, open_run

    try:
        run = open_run(run_dir)
    except NotARun as error:
        raise Mistake(str(error)) from None
    written = write_report(run.path)
    if not written:
        raise Mistake(f"{run_dir} has no rollouts yet. Wait until the first step is done.")
    verdict = run.summary().get("verdict") or {}
    print(f"{verdict.get('verdict')}: {verdict.get('evidence')} {verdict.get('advice')}")
    for path in written:
        print(f"  {path}")
