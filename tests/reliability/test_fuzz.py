"""The short form of ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.fuzz import fuzz
from tests.reliability.local import with_service


def test_no_mutated_request_is_answered_with_5xx(tmp_path: Path) -> None:
    assert with_service(tmp_path, lambda local: fuzz(local, 400, seed=7)) == []
