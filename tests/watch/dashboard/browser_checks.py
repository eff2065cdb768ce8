"""Accessibility checks of a page: names, headings, contrast, and a width that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

PROBLEMS = (Path(__file__).parent / "problems.js").read_text().partition("\n")[2]


def problems_of(page: Page) -> list[str]:
    """What is wrong with the page as it is shown now."""
    found: Any = page.evaluate(PROBLEMS)
    return [str(problem) for problem in found]
