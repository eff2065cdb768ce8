"""What a side did and when: JSON lines, written as it goes, stamped with the wall clock."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.trl.task import Problem, Scores, Task, digest


class Record:
    """Writes the rows of one run: ``ready``, ``eval``, ``step`` ..., ``eval``."""

    def __init__(self, path: Path, task: Task) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._task = task
        self._began = self._sampled = 0.0

    def ready(self, **facts: Any) -> None:
        """The model is loaded; ``facts`` say on what and by which versions."""
        self._write("ready", **facts)

    def evaluated(self, when: str, texts: Sequence[str]) -> None:
        """The most likely answers to the held-out problems."""
        scores = Scores.of(self._task.held_out, [[text] for text in texts])
        self._write("eval", when=when, **vars(scores))

    def begin(self) -> None:
        """A step begins."""
        self._began = time.time()

    def sampled(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[str],
        texts: Sequence[Sequence[str]],
        tokens: int,
    ) -> None:
        """The step's answers are there and scored; what follows is training."""
        self._sampled = time.time()
        self._answers = {
            **vars(Scores.of(problems, texts)),
            "tokens": tokens,
            "prompts": digest(prompts),
        }

    def end(self, step: int) -> None:
        """The step is done."""
        ended = time.time()
        seconds = {"sample": self._sampled - self._began, "train": ended - self._sampled}
        self._write("step", step=step, began=self._began, **seconds, **self._answers)

    def _write(self, kind: str, **row: Any) -> None:
        row = {"kind": kind, "at": time.time(), **row}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        print(json.dumps(row), flush=True)
