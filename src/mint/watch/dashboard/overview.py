"""Overviews of runs, and the tables behind their curves, kept up to date."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from mint.watch.dashboard.curves import columns, read_step, spark
from mint.watch.dashboard.query import Rollouts
from mint.watch.dashboard.run_index import RunPlace
from mint.watch.dashboard.tail import Tail, open_regular
from mint.watch.directory.files import CONFIG, EVENTS, METRICS, SUMMARY
from mint.watch.directory.reader import RunReader, summarise
from mint.watch.verdict.series import number
from mint.watch.verdict.verdict import NEEDED

Found = TypeVar("Found")
_MOST_BYTES = 1024 * 1024
_MOST_ROWS_KEPT = 100_000
_MOST_OVERVIEWS = 2_000
_MOST_STOPS = 16
_SPARKS = ("reward/success", "reward/mean", "holdout/pass@1")
_TEXT = 2_000
_NAME = 200


class RunTables:
    """The metrics and events of one run."""

    def __init__(self, path: Path) -> None:
        self.metrics = Tail(path / METRICS)
        self.events = Tail(path / EVENTS)
        self._computed: dict[str, tuple[object, Any]] = {}

    def __len__(self) -> int:
        return len(self.metrics.rows) + len(self.events.rows)

    def curves(self) -> dict[str, Any]:
        """Return all metrics as columns; computed again only when there are more."""
        rows = self.metrics.rows
        key = (self.metrics.generation, len(rows))
        return self._cached("curves", key, lambda: columns(rows))

    def components(self, rollouts: Rollouts) -> list[str]:
        """Return the names of the reward's components; queried only when there is a new file."""
        newest = [file.path for file in rollouts.files()[-1:]]
        return self._cached("components", newest, rollouts.component_names)

    def summarise(self) -> dict[str, Any]:
        """Return a summary of a run that wrote none; computed again only when it has grown."""
        rows, events = self.metrics.rows, self.events.rows

        def summary() -> dict[str, Any]:
            measured = [{n: number(row[n]) for n in NEEDED if n in row} for row in rows]
            return summarise(measured, events, "unknown")

        return self._cached("summary", (len(rows), len(events)), summary)

    def _cached(self, name: str, key: object, compute: Callable[[], Found]) -> Found:
        """Return the last result for this key, or compute it."""
        if self._computed.get(name, (None,))[0] != key:
            self._computed[name] = key, compute()
        found: Found = self._computed[name][1]
        return found


class Tables:
    """The tables of the runs that were requested last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, RunTables] = OrderedDict()
        self._overviews: dict[str, tuple[object, dict[str, Any]]] = {}

    def of(self, place: RunPlace) -> RunTables:
        """Return a run's tables, up to date with its files."""
        found = self._kept.setdefault(place.id, RunTables(place.path))
        self._kept.move_to_end(place.id)
        found.metrics.refresh()
        found.events.refresh()
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _MOST_ROWS_KEPT:
            self._kept.popitem(last=False)
        return found

    def overview(self, place: RunPlace) -> dict[str, Any]:
        """Describe a run; one that is not running is read again only when a file changed."""
        now = _signature(place.path)
        before, found = self._overviews.get(place.id, (None, {}))
        if before != now or found.get("status") == "running":
            found = overview(place, self.of(place))
            if len(self._overviews) >= _MOST_OVERVIEWS:
                self._overviews.clear()
            self._overviews[place.id] = (now, found)
        return found


def _signature(folder: Path) -> object:
    """Return a value that changes when a run writes its small files."""
    found = []
    for name in (CONFIG, EVENTS, METRICS, SUMMARY):
        with suppress(OSError):
            status = (folder / name).lstat()
            found.append((name, status.st_mtime_ns, status.st_size))
    return found


def overview(place: RunPlace, tables: RunTables) -> dict[str, Any]:
    """Describe a run: its progress, its verdict, and its main curves in a few points."""
    rows = tables.metrics.rows
    config = read_config(place)[0]
    summary: dict[str, Any] = {}
    if read_text(place, SUMMARY) is not None:  # neither absent, nor a link, nor too large
        summary = RunReader(place.path).summary()
    if not summary.get("status"):
        summary = tables.summarise()
    last = rows[-1] if rows else {}
    return {
        "id": place.id,
        "name": _text(summary.get("name"), _NAME) or place.path.name,
        "path": str(place.path),
        "task": _text(summary.get("task"), _NAME) or _text(config.get("task"), _NAME),
        "model": _text(config.get("base_model"), _NAME),
        "status": _text(summary.get("status")) or "unknown",
        "step": int(number(summary.get("step")) or read_step(last)),
        "steps": int(number(summary.get("steps")) or number(config.get("steps")) or 0),
        "started": number(summary.get("started")),
        "updated": number(summary.get("updated")),
        "verdict": _verdict(summary.get("verdict")),
        "last": {name: x for name, value in last.items() if (x := number(value)) is not None},
        "spark": {name: line for name in _SPARKS if (line := spark(rows, name))},
    }


def _verdict(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, Mapping):
        return None
    words = {name: _text(found.get(name)) for name in ("verdict", "evidence", "advice")}
    return {**words, "since": number(found.get("since"))}


def read_config(place: RunPlace) -> tuple[dict[str, Any], str]:
    """Return ``config.yaml`` as settings and as text; no settings if it cannot be parsed."""
    text = read_text(place, CONFIG) or ""
    try:
        found = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text
    return (found if isinstance(found, dict) else {}), text


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names.

    >>> flat({"a": {"b": 1}, "c": [1, 2]})
    {'a.b': 1, 'c': '[1, 2]'}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{key}.")
        else:
            is_plain = isinstance(value, str | int | float | bool | None)
            found[key] = value if is_plain else str(value)[:_TEXT]
    return found


def stop_strings(settings: Mapping[str, Any]) -> list[str]:
    """Return the stop strings among settings.

    >>> stop_strings({"stop": ["\\n", 3]}), stop_strings({"stop": "END"}), stop_strings({})
    (['\\n'], ['END'], [])
    """
    found = settings.get("stop")
    given = found if isinstance(found, list) else [found]
    return [text for each in given[:_MOST_STOPS] if (text := _text(each))]


def read_text(place: RunPlace, name: str) -> str | None:
    """Return a small text file of a run; None when it is absent, a link or too large."""
    file = open_regular(place.path / name)
    if file is None:
        return None
    with file:
        content = file.read(_MOST_BYTES + 1)
    return content.decode(errors="replace") if len(content) <= _MOST_BYTES else None


def _text(value: Any, most: int = _TEXT) -> str:
    return value[:most] if isinstance(value, str) else ""


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)
