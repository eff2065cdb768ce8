"""The live service of these tests."""

from tests.service_fixture import live_service, own_service, raw, service

__all__ = ["live_service", "own_service", "raw", "service"]
