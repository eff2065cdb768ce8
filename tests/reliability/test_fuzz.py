"""A few of the requests that ``make fuzz`` sends."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.fuzz import fuzz
from tests.service_fixture import DATABASES


@DATABASES
def test_no_mutated_request_is_answered_with_5xx(
    tmp_path: Path, tiny_model: Path, database: str | None
) -> None:
    done = fuzz(tmp_path, tiny_model, 400, seed=9 if database else 7, database_url=database)
    assert done.failures == []
    done.require(400)
