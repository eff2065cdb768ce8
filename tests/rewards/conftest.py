"""What the reward tests share."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def sandbox_installed() -> None:
    """Fails with the command to type when bubblewrap is missing: untested is not safe."""
    if shutil.which("bwrap") is None:
        pytest.fail("bubblewrap is missing. On Debian or Ubuntu type: apt-get install bubblewrap")
