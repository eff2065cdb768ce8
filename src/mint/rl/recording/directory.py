"""Choose the run directory: a new one, or that of an interrupted run."""

import json
import re
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError
from mint.embedded import embedded_home
from mint.rl.settings.config import RLConfig, short_hash
from mint.watch.directory.recorder import STATE, RunDirectory, RunDirectoryBusy

RUNS = Path("runs")
SERVICE = "service.json"
_LONGEST = 48


def task_name(adapter: Any) -> str:
    """Return a task's name in paths: its ``name``, or else its class's in lower case.

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


def own_name(adapter: Any) -> str | None:
    name = getattr(adapter, "name", None)
    return name if isinstance(name, str) and name else None


def open_directory(cfg: RLConfig, adapter: Any) -> RunDirectory:
    """Open the run directory to write to, cut to the last checkpoint.

    Without ``cfg.run_dir``, the same script with the same settings continues its unfinished run.
    """
    own, mark = own_name(adapter), cfg.fingerprint()
    if cfg.run_dir:
        directory = RunDirectory(cfg.run_dir)
        _check_same_run(directory, cfg, own)
    else:
        mark = mark if own is None else short_hash(f"{mark} {own}")  # paths may shorten the name
        directory = RunDirectory(find_directory(f"{task_name(adapter)}-{mark}"))
    directory.rewind()
    directory.write_config({"task": own or task_name(adapter), **cfg.as_dict()})
    directory.add_sinks(cfg.sinks)
    if sys.stdout.isatty():
        directory.show_live()
    return directory


def _check_same_run(directory: RunDirectory, cfg: RLConfig, name: str | None) -> None:
    """Raise :class:`ConfigError` for a run of another task, or with other settings."""
    if not directory.state():
        return
    config = directory.config()
    different = cfg.differences(config)
    if name is not None and config.get("task") != name:
        different["task"] = (name, config.get("task"))
    if different:
        directory.close()
        shown = ", ".join(f"{k}={old!r} (now {new!r})" for k, (new, old) in different.items())
        raise ConfigError(
            f"{cfg.run_dir} contains a run with other settings: {shown}. Use the same settings to "
            "resume it, or another run_dir."
        )


def find_directory(name: str) -> Path:
    """Return the interrupted run that was saved last of ``runs/NAME``, ``runs/NAME-2``, …, or a new
    folder, if all runs of this name are finished or active."""
    known = [path for path in (RUNS / name, *sorted(RUNS.glob(f"{name}-*"))) if path.is_dir()]
    free = [path for path in known if _is_free(path)]
    return max(free, key=_saved_at) if free else next(p for p in numbered(name) if p not in known)


def numbered(name: str) -> Iterator[Path]:
    """Yield ``runs/NAME``, ``runs/NAME-2``, ``runs/NAME-3`` and so on."""
    yield RUNS / name
    yield from (RUNS / f"{name}-{number}" for number in count(2))


def _is_free(path: Path) -> bool:
    try:
        with RunDirectory(path) as directory:
            return not (directory.state() or {}).get("finished")
    except RunDirectoryBusy:
        print(f"Another process is writing to {path}: this is a separate run.", flush=True)
        return False


def _saved_at(path: Path) -> float:
    state = path / STATE
    return state.stat().st_mtime if state.exists() else 0.0


def write_service(folder: Path, url: str) -> None:
    """Keep which service a run uses. An embedded service has another URL whenever it starts."""
    home = embedded_home(url)
    found = {"url": url} if home is None else {"home": str(home)}
    (folder / SERVICE).write_text(json.dumps(found) + "\n")


def read_service(folder: Path) -> dict[str, str]:
    """Return a run's service: its ``url``, or the ``home`` of an embedded one; empty if unknown.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_service(folder, "http://gpu:8000")
    >>> read_service(folder)
    {'url': 'http://gpu:8000'}
    """
    file = folder / SERVICE
    return dict(json.loads(file.read_text())) if file.exists() else {}
