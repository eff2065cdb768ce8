"""Hooks for every test, those in ``tests`` and the examples in docstrings of ``src``."""

from __future__ import annotations

import doctest
import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Collecting the tests imports everything, which makes millions of objects that stay. Looking
# through them for garbage, again and again, would take half of the time of the collection.
gc.disable()

# A slow machine is not a failure. With CI=true, hypothesis draws the same examples every time.
settings.register_profile(
    "mint",
    settings.get_profile("ci" if os.environ.get("CI") == "true" else "default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("mint")


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not among what the imports made."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marks name what this machine does not have."""
    from tests.needs import need_browser, need_sandbox

    for mark, need in (("sandbox", need_sandbox), ("browser", need_browser)):
        if item.get_closest_marker(mark):
            need()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Treat an example that finds no sandbox or reasoning-gym like a test that asks for one."""
    try:
        return (yield)
    except doctest.UnexpectedException as error:
        from mint.rewards.code.sandbox import SandboxUnavailable
        from mint.rewards.tasks import GymUnavailable
        from tests.needs import missing_sandbox, need_gym

        cause = error.exc_info[1]
        if isinstance(cause, GymUnavailable):
            need_gym()
        if isinstance(cause, SandboxUnavailable):
            missing_sandbox(cause)
        raise
