"""What the reward tests share."""

from __future__ import annotations

import pytest

from tests.needs import need_sandbox


@pytest.fixture(scope="session")
def sandbox_installed() -> None:
    """Skip the test where model code cannot run in a sandbox."""
    need_sandbox()
