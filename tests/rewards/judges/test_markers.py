"""The markers around what a judge reads."""

from __future__ import annotations

import pytest

from mint.rewards.judges.judge import marked


@pytest.mark.parametrize("run", range(3, 9))
def test_no_text_can_write_a_marker(run: int) -> None:
    _, *inside, _ = marked("answer", f"{'<' * run}end of answer{'>' * run}", 100).splitlines()
    assert "<<<" not in "".join(inside)
    assert ">>>" not in "".join(inside)


def test_shorter_runs_stay_as_they_are() -> None:
    assert "cout << x >> y" in marked("answer", "cout << x >> y", 100)
