"""Fixtures that every test may use: a tiny real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import build_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama and a byte-level tokenizer."""
    return build_model(tmp_path_factory.mktemp("models") / "tiny" / "llama")
