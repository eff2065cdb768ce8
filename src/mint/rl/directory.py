"""Which run directory a run writes to: a new one, or the one of a run that was interrupted."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

from mint.rl.config import RLConfig
from mint.rl.options import ConfigError
from mint.watch.recorder import RunDirectory, RunDirectoryBusy

RUNS = Path("runs")


def task_name(adapter: Any) -> str:
    """A task's name in paths: its class's, in lower case.

    >>> class VerifiableMathAdapter: pass
    >>> task_name(VerifiableMathAdapter())
    'verifiable-math'
    """
    name = type(adapter).__name__.removesuffix("Adapter").removesuffix("Environment") or "run"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def open_directory(cfg: RLConfig, adapter: Any) -> RunDirectory:
    """The directory to write to, its tables cut to where its run stands.

    With ``cfg.run_dir`` it is that one. Without, the same script with the same settings continues
    its unfinished run, and begins a new one when there is none.
    """
    directory = _named(cfg) if cfg.run_dir else _found(cfg, adapter)
    directory.rewind()
    directory.write_config({"task": task_name(adapter), **cfg.as_dict()})
    return directory


def _named(cfg: RLConfig) -> RunDirectory:
    assert cfg.run_dir
    directory = RunDirectory(cfg.run_dir)
    different = cfg.differences(directory.config()) if directory.state() else {}
    if different:
        directory.close()
        shown = ", ".join(f"{k}={old!r} (now {new!r})" for k, (new, old) in different.items())
        raise ConfigError(
            f"{cfg.run_dir} holds a run with other settings: {shown}. Use the same settings to "
            "continue it, or another run_dir."
        )
    return directory


def _found(cfg: RLConfig, adapter: Any) -> RunDirectory:
    name = f"{task_name(adapter)}-{cfg.fingerprint()}"
    for number in count(1):
        path = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            directory = RunDirectory(path)
        except RunDirectoryBusy:
            continue
        if not (directory.state() or {}).get("finished"):
            return directory
        directory.close()
    raise AssertionError("unreachable")
