"""The fixture of these tests."""

from tests.installed import installed

__all__ = ["installed"]
