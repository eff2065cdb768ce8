"""Choose the run directory: a new one, or that of an interrupted run."""

import hashlib
import re
import sys
from itertools import count
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError
from mint.rl.settings.config import RLConfig
from mint.watch.directory.recorder import RunDirectory, RunDirectoryBusy

RUNS = Path("runs")
_LONGEST = 48


def task_name(adapter: Any) -> str:
    """A task's name in paths: its ``name``, or else its class's in lower case.

    >>> class VerifiableMathAdapter: pass
    >>> task = VerifiableMathAdapter()
    >>> task_name(task)
    'verifiable-math'
    >>> task.name = "math gym:countdown"
    >>> task_name(task)
    'math-gym-countdown'
    """
    name = own_name(adapter)
    if name is None:
        name = type(adapter).__name__.removesuffix("Adapter").removesuffix("Environment")
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return re.sub(r"[^\w.]+", "-", name)[:_LONGEST].strip("-.") or "run"


def describe_run(adapter: Any, folder: Path) -> dict[str, str]:
    """Return metadata for lists of runs: the task and the run directory."""
    return {"task": own_name(adapter) or task_name(adapter), "run_dir": str(folder.resolve())}


def own_name(adapter: Any) -> str | None:
    """Return a task's own name, if it has one."""
    name = getattr(adapter, "name", None)
    return name if isinstance(name, str) and name else None


def open_directory(cfg: RLConfig, adapter: Any) -> RunDirectory:
    """The directory to write to, its tables cut to where its run stands.

    With ``cfg.run_dir`` it is that one. Without, the same script with the same settings continues
    its unfinished run, and begins a new one when there is none.
    """
    directory = _named(cfg, adapter) if cfg.run_dir else _found(cfg, adapter)
    directory.rewind()
    directory.write_config({"task": own_name(adapter) or task_name(adapter), **cfg.as_dict()})
    directory.add_sinks(cfg.sinks)
    if sys.stdout.isatty():
        directory.show_live()
    return directory


def _named(cfg: RLConfig, adapter: Any) -> RunDirectory:
    assert cfg.run_dir
    directory = RunDirectory(cfg.run_dir)
    different = _differences(cfg, adapter, directory.config()) if directory.state() else {}
    if different:
        directory.close()
        shown = ", ".join(f"{k}={old!r} (now {new!r})" for k, (new, old) in different.items())
        raise ConfigError(
            f"{cfg.run_dir} contains a run with other settings: {shown}. Use the same settings to "
            "resume it, or another run_dir."
        )
    return directory


def _differences(cfg: RLConfig, adapter: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that make this another run. Classes may be renamed; names are kept."""
    found: dict[str, Any] = cfg.differences(config)
    name = own_name(adapter)
    if name is not None and config.get("task") != name:
        found["task"] = (name, config.get("task"))
    return found


def _found(cfg: RLConfig, adapter: Any) -> RunDirectory:
    name = f"{task_name(adapter)}-{_fingerprint(cfg, adapter)}"
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


def _fingerprint(cfg: RLConfig, adapter: Any) -> str:
    """Tells tasks with names apart by all of their names, not only by what a path shows of them."""
    name = own_name(adapter)
    if name is None:
        return cfg.fingerprint()
    return hashlib.sha256(f"{cfg.fingerprint()} {name}".encode()).hexdigest()[:8]
