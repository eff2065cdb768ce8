"""A recorded run, to look at before training anything."""

from pathlib import Path


def demo_folder() -> Path:
    """Return the folder of the recorded run that comes with mint.

    ``scripts/record_demo.sh`` made it.
    """
    return Path(__file__).parent / "recorded"
