"""Fault injection: the Nth call of a named function kills its process, stops it, or fails."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

INJECTED = Path(__file__).parent / "injected"


@dataclass
class Faults:
    """The faults that services started from now on will meet, each once."""

    folder: Path
    environment: pytest.MonkeyPatch
    planned: list[dict[str, object]] = field(default_factory=list)

    def at(self, point: str, call: int = 1, action: str = "kill") -> None:
        """Plan a fault: ``kill``, ``stop``, ``MemoryError``, or an errno such as ``ENOSPC``.

        With `` after`` at its end it happens after the call.
        """
        mark = str(self.folder / f"fault-{len(self.planned)}")
        self.planned.append({"point": point, "call": call, "action": action, "mark": mark})
        self.environment.setenv("MINT_TEST_FAULTS", json.dumps(self.planned))
        path = [str(INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])]
        if str(INJECTED) not in os.environ.get("PYTHONPATH", ""):
            self.environment.setenv("PYTHONPATH", os.pathsep.join(path))

    @property
    def happened(self) -> int:
        """How many of them have happened."""
        return sum(Path(str(fault["mark"])).exists() for fault in self.planned)

    def require_all(self) -> None:
        """A test of a fault that did not happen has shown nothing."""
        assert self.happened == len(self.planned)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(tmp_path, monkeypatch)
