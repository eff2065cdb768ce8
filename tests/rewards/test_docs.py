"""The documentation page: complete, true, and every example runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import mint.rewards
from mint.rewards.registry import RANGES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rewards.md"


@pytest.mark.sandbox
def test_every_example_of_the_page_runs() -> None:
    pytest.importorskip("reasoning_gym")
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, verbose=False)
    assert tried > 80
    assert failed == 0


@pytest.mark.parametrize("name", mint.rewards.__all__)
def test_every_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RANGES)
def test_every_reward_is_on_the_page_with_its_range_and_in_an_example(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    if name != "compute_reward_breakdown":
        row = re.search(rf"^\| `{name}\(.*?\)` \| ([^|]*) \|", text, re.MULTILINE)
        assert row is not None
        assert row[1].startswith(RANGES[name])
    assert any(f"{name}(" in line for line in text.splitlines() if line.startswith((">>>", "...")))
