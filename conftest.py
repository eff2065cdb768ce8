"""Hooks for every test, those in ``tests`` and the examples in docstrings of ``src``."""

from __future__ import annotations

import doctest
from collections.abc import Generator

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marks name what this machine does not have."""
    from tests.needs import need_browser, need_sandbox

    for mark, need in (("sandbox", need_sandbox), ("browser", need_browser)):
        if item.get_closest_marker(mark):
            need()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Treat an example that finds no sandbox like a test that asks for one."""
    try:
        return (yield)
    except doctest.UnexpectedException as error:
        from mint.rewards.sandbox import SandboxUnavailable
        from tests.needs import missing_sandbox

        cause = error.exc_info[1]
        if isinstance(cause, SandboxUnavailable):
            missing_sandbox(cause)
        raise
