"""The short form of ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.fuzz import fuzz
from tests.reliability.local import with_service
from tests.service_fixture import DATABASES


@DATABASES
def test_no_mutated_request_is_answered_with_5xx(tmp_path: Path, database: str | None) -> None:
    seed = 8 if database else 7
    answers = with_service(tmp_path, lambda local: fuzz(local, 400, seed), database_url=database)
    assert answers == []
