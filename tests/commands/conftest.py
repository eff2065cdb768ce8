"""The services of the SDK's tests, which commands talk to."""

from tests.sdk.conftest import embedded, no_settings_from_outside, sdk_folder, served

__all__ = ["embedded", "no_settings_from_outside", "sdk_folder", "served"]
