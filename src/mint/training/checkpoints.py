"""Evaluate a checkpoint, a run or the base model on prompts that training never sees."""

import json
from pathlib import Path

from mint.config_error import ConfigError
from mint.rl.loop.checkpoints import RunCheckpoints
from mint.watch.directory.recorder import EVENTS, STATE, read_rows

SCHEMES = ("tinker://", "mint://")


def find_checkpoint(text: str) -> str:
    """The path that ``checkpoint=`` stands for: itself, or the best checkpoint of a run directory.

    Without an evaluation during training nothing is best, and the latest is taken.
    """
    if text.startswith(SCHEMES):
        return text
    path = saved_checkpoint(Path(text))
    if path is None:
        raise ConfigError(
            f"checkpoint={text} is neither a run directory with a checkpoint nor a path. Paths "
            "begin with tinker:// and are listed by `mint checkpoints list`."
        )
    return path


def saved_checkpoint(folder: Path) -> str | None:
    """Return the path of a run directory's best checkpoint, or else of its latest.

    None if there is none. A script that records its own run reports a checkpoint as an event:
    ``record.event("checkpoint", path=...)``.
    """
    state = folder / STATE
    if state.is_file():
        checkpoints = RunCheckpoints(every=1)
        checkpoints.load(json.loads(state.read_text())["checkpoints"])
        found = checkpoints.best or checkpoints.latest
        assert found is not None  # the state is kept when a checkpoint is saved, and not before
        return found.path
    saved = [row for row in read_rows(folder / EVENTS) if row.get("event") == "checkpoint"]
    return next((str(row["path"]) for row in reversed(saved) if row.get("path")), None)
