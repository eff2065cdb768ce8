"""The files that come with mint: ``conf/``, the tasks in ``demos/``, and ``quickstart/``."""

from pathlib import Path


def bundled() -> Path:
    """Return the folder that holds them: in the installed package, or the clone itself.

    >>> (bundled() / "conf" / "config.yaml").is_file()
    True
    """
    here = Path(__file__).resolve()
    installed = here.parents[1] / "bundled"  # setup.py writes it when a wheel is built
    return installed if installed.is_dir() else here.parents[3]
