"""Names on the command line: a base model, a checkpoint, a run, or a run directory.

A checkpoint is named by its ``tinker://`` path, by a run directory (its best checkpoint, or else
its latest), or in short: the first letters of a run's id, a checkpoint's name, or both as RUN/NAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint.commands.shared.output import Mistake
from mint.commands.shared.remote import Remote
from mint.embedded import named_url
from mint.rl.loop.checkpoints import SCHEMES, saved_checkpoint
from mint.watch.directory.files import CONFIG, STATE

if TYPE_CHECKING:
    from mint.service.checkpoints.storage import CheckpointPath

ADAPTER_CONFIG = "adapter_config.json"
_FEWEST_LETTERS = 4
_ALL = 10_000
_SHOWN = 10


@dataclass(frozen=True)
class Named:
    """A base model's name or a checkpoint's path, with the service that has it."""

    model: str
    remote: Remote
    run_directory: Path | None = None


def find(text: str, url: str | None) -> Named:
    """Find what a name stands for, and a service that has it; start one if none is running."""
    folder = Path(text)
    if text.startswith(SCHEMES):
        return Named(text, Remote.running_or_embedded(url))
    if (folder / CONFIG).is_file() or (folder / STATE).is_file():
        return _find_in_run(folder, url)
    if (folder / ADAPTER_CONFIG).is_file():
        raise Mistake(
            f"{text} is a PEFT folder. Upload it, then use the path that this prints: "
            f"mint checkpoints upload {text}"
        )
    remote = Remote.running_or_embedded(url)
    return Named(short_path(remote, text) or text, remote)


def find_weights(text: str, url: str | None) -> tuple[Remote, CheckpointPath]:
    """Find the checkpoint that a name stands for, and a service that has it."""
    from mint.service.checkpoints.storage import CheckpointPath

    named = find(text, url)
    if not named.model.startswith(SCHEMES):
        raise Mistake(
            f"{text} is not a checkpoint, a run directory or a PEFT folder. Use a tinker:// path "
            "or a prefix of a run id: `mint checkpoints list` and `mint runs list` show those of "
            f"{named.remote.url}."
        )
    return named.remote, CheckpointPath.parse(named.model)


def _find_in_run(folder: Path, url: str | None) -> Named:
    """Find the checkpoint that a run directory stands for, and the service that trained it."""
    from mint.rl.recording.directory import read_service

    path = saved_checkpoint(folder)
    if path is None:
        raise Mistake(
            f"{folder} has no checkpoint yet. Repeat the command that started the run to resume "
            "it, and save more often: training.checkpoint_every=1. If your own script recorded the "
            "run, use the tinker:// path of a checkpoint it saved: `mint checkpoints list`."
        )
    service = read_service(folder)
    if named := named_url(url) or service.get("url"):
        remote = Remote(named)
    else:
        remote = Remote.embedded(Path(service["home"]) if "home" in service else None)
    return Named(path, remote, folder)


# ---- short names ---------------------------------------------------------------------------------


def run_id(remote: Remote, text: str) -> str:
    """Return the id of the run with this prefix; any other text unchanged."""
    found = _runs(remote, text)
    if len(found) > 1:
        raise _ambiguous(text, "runs", [run["training_run_id"] for run in found])
    return str(found[0]["training_run_id"]) if found else text


def short_path(remote: Remote, text: str) -> str | None:
    """Return the path of the checkpoint with a short name, or None."""
    run, _, name = text.rpartition("/")
    run = run.partition("/")[0]
    checkpoints = remote.get("/api/v1/checkpoints", limit=_ALL)["checkpoints"] if name else []
    paths = [
        c["tinker_path"]
        for c in checkpoints
        if c["checkpoint_id"].rpartition("/")[2] == name
        and c["tinker_path"].partition("://")[2].startswith(run)
    ]
    if not paths and not run:
        for found in _runs(remote, text):
            saved = [c for c in (found["last_checkpoint"], found["last_sampler_checkpoint"]) if c]
            if saved:
                paths.append(max(saved, key=lambda c: str(c["time"]))["tinker_path"])
    if len(paths) > 1:
        raise _ambiguous(text, "checkpoints", paths)
    return paths[0] if paths else None


def _runs(remote: Remote, letters: str) -> list[dict[str, Any]]:
    if len(letters) < _FEWEST_LETTERS:
        return []
    runs = remote.get("/api/v1/training_runs", limit=_ALL)["training_runs"]
    exact = [run for run in runs if run["training_run_id"] == letters]
    return exact or [run for run in runs if run["training_run_id"].startswith(letters)]


def _ambiguous(text: str, what: str, candidates: list[str]) -> Mistake:
    shown = [f"\n  {candidate}" for candidate in candidates[:_SHOWN]]
    if len(candidates) > _SHOWN:
        shown.append(f"\n  and {len(candidates) - _SHOWN} more")
    return Mistake(f"{text!r} matches {len(candidates)} {what}. Use one of:{''.join(shown)}")
