"""Checkpoints of a run: the latest to resume from, the best to use, and those of ``keep_every``."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mint
from mint.config_error import ConfigError
from mint.watch.directory.recorder import EVENTS, STATE, read_rows

SCHEMES = ("tinker://", "mint://")


@dataclass(frozen=True)
class Checkpoint:
    """Weights and optimizer after a step."""

    step: int
    path: str
    score: tuple[float, float] | None = None  # pass@1 and reward on the holdout, where evaluated


class RunCheckpoints:
    """Saves and prunes a run's checkpoints. None is deleted before its successor is recorded."""

    def __init__(self, every: int, keep_every: int = 0) -> None:
        self.every = every
        self.keep_every = keep_every
        self.kept: list[Checkpoint] = []
        self._unwanted: list[Checkpoint] = []

    def due(self, step: int) -> bool:
        """Return whether a step's weights are to be saved, to resume from or to keep."""
        return any(every and step % every == 0 for every in (self.every, self.keep_every))

    @property
    def latest(self) -> Checkpoint | None:
        """The checkpoint that a resumed run starts from."""
        return max(self.kept, key=lambda c: c.step, default=None)

    @property
    def where(self) -> str:
        """A sentence that names the latest checkpoint."""
        latest = self.latest
        return f"The last good checkpoint is {latest.path}." if latest else "Nothing was saved yet."

    @property
    def best(self) -> Checkpoint | None:
        """The one with the highest score on the holdout; of equals, the earliest."""
        ranks = {c: [round(value, 9) for value in c.score] for c in self.kept if c.score}
        return max(ranks, key=lambda c: (ranks[c], -c.step), default=None)

    async def save(
        self, client: mint.TrainingClient, step: int, score: tuple[float, float] | None = None
    ) -> Checkpoint:
        """Save the weights and the optimizer as they are after a step."""
        request = client.save_state(name=f"step-{step:06d}", overwrite=True)
        answer = await asyncio.shield(request)  # not cancelled: the service waits for it
        checkpoint = Checkpoint(step, answer.path, score)
        self.kept = [c for c in self.kept if c.path != checkpoint.path] + [checkpoint]
        keep, every = (self.latest, self.best), self.keep_every
        wanted = [c for c in self.kept if c in keep or (every and c.step % every == 0)]
        self._unwanted += [c for c in self.kept if c not in wanted]
        self.kept = wanted
        return checkpoint

    async def prune(self, rest: mint.RestClient) -> None:
        """Delete the checkpoints that are no longer wanted. Call it after saving the state."""
        unwanted, self._unwanted = self._unwanted, []
        for checkpoint in unwanted:
            with contextlib.suppress(mint.NotFoundError):
                await rest.delete_checkpoint_from_tinker_path_async(checkpoint.path)

    def state(self) -> list[dict[str, Any]]:
        return [asdict(checkpoint) for checkpoint in self.kept]

    def load(self, state: list[Mapping[str, Any]]) -> None:
        self.kept = [
            Checkpoint(v["step"], v["path"], tuple(v["score"]) if v["score"] else None)
            for v in state
        ]


def find_checkpoint(text: str) -> str:
    """Return the path for ``checkpoint=``: itself, or the checkpoint of a run directory."""
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
    """Return the path of a run directory's best checkpoint, or else of its latest, or None.

    A script that records its own run reports one by ``record.event("checkpoint", path=...)``.
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
