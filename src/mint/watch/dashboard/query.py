"""Queries over the rollouts of a run, by DuckDB on its Parquet files.

The files are not trusted: DuckDB may open nothing but the run's own files, load no extension and
use bounded memory, and a query that takes too long is interrupted.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from mint.watch.dashboard.filters import BadFilter, Filter
from mint.watch.dashboard.run_index import RunPlace
from mint.watch.directory.files import ROLLOUTS_1, RolloutFile
from mint.watch.directory.schema import SCHEMA

MOST_ROLLOUTS = 4_096
"""Rollouts of one step that a view shows."""
MOST_HITS = 200
MOST_EXPORTED = 100_000
LONGEST_TEXT = 2 * 1024 * 1024
"""Characters of one text that are sent; longer texts are truncated and marked."""
_MEMORY = "1GB"
_PATIENCE_S = 20.0
_TURN_S = 0.6
_FILES_A_TURN = 8
_PROMPT = "CASE WHEN length(prompt) > 280 THEN '…' || right(prompt, 279) ELSE prompt END"
"""The end of a prompt tells it from others: many begin with the same instructions or examples."""
_BRIEF = f"""
    step, "group", "index", identity, reward, components, advantage, penalty, length, truncated,
    stop, masked, replaced, version, error,
    left(response, 280) AS response, length(response) > 280 AS cut, {_PROMPT} AS prompt
"""

Place = tuple[int, int, int]
"""The step, group and index of a rollout."""
_HIGH = 2**31 - 1
_TRIES = 3
Choice = Callable[[list[RolloutFile]], list[RolloutFile]]


class QueryFailed(RuntimeError):
    """A file could not be read, or the query took too long; the text says which."""


class FilesMerged(QueryFailed):
    """A file has disappeared since it was listed: the run merged it with others."""


@dataclass(frozen=True)
class Hits:
    """Some results of a search, and where to continue."""

    rows: list[dict[str, Any]]
    next: Place | None
    searched: float


class Rollouts:
    """The rollouts of one run."""

    def __init__(self, place: RunPlace) -> None:
        self.files = place.rollout_files

    def of_step(self, step: int) -> list[dict[str, Any]]:
        """Return the rollouts of a step in brief."""
        return [_brief(row) for row in self._of_step(_BRIEF, step)]

    def samples(self, step: int) -> list[dict[str, Any]]:
        """Return everything about all rollouts of a step."""
        return [_whole(row) for row in self._of_step("*", step)]

    def _of_step(self, columns: str, step: int) -> list[dict[str, Any]]:
        sql = f'SELECT {columns} FROM {{}} WHERE step = ? ORDER BY "group", "index" LIMIT ?'
        return self._ask(_containing(step), sql, [step, MOST_ROLLOUTS])

    def sample(self, step: int, group: int, index: int) -> dict[str, Any] | None:
        """Return everything about one rollout."""
        sql = 'SELECT * FROM {} WHERE step = ? AND "group" = ? AND "index" = ? LIMIT 1'
        rows = self._ask(_containing(step), sql, [step, group, index])
        return _whole(rows[0]) if rows else None

    def of_prompts(self, identities: Sequence[str], limit: int = 1_000) -> dict[str, Any]:
        """Return the rollouts of some prompts across the steps, in brief, and how many there are.

        With more than ``limit``, steps are left out evenly, but never the last.
        """
        sql = """
            SELECT identity, step, count(*) AS answers FROM {} WHERE identity IN (SELECT unnest(?))
            GROUP BY ALL ORDER BY step
        """
        found: dict[str, Any] = {}
        for identity in identities:
            found[identity] = {"identity": identity, "answers": 0, "rollouts": []}
        steps: dict[str, list[int]] = {identity: [] for identity in identities}
        for row in self._ask(list, sql, [list(identities)]):
            found[row["identity"]]["answers"] += row["answers"]
            steps[row["identity"]].append(row["step"])
        pairs = [
            (identity, step)
            for identity, every in steps.items()
            for step in _spread(every, -(-found[identity]["answers"] // limit))
        ]
        sql = f"""
            SELECT {_BRIEF} FROM {{}} WHERE (identity, step) IN (SELECT unnest(?), unnest(?))
            ORDER BY step, "group", "index" LIMIT ?
        """
        most = MOST_ROLLOUTS * len(found)
        if pairs:
            for row in self._ask(list, sql, [*map(list, zip(*pairs, strict=True)), most]):
                found[row["identity"]]["rollouts"].append(_brief(row))
        return found

    def prompts(self, limit: int = 500) -> list[dict[str, Any]]:
        """List the prompts that occur in the most steps of the last files."""
        sql = f"""
            SELECT identity, any_value({_PROMPT}) AS prompt, count(DISTINCT step) AS steps,
                min(step) AS first, max(step) AS last, avg(reward) AS reward
            FROM {{}} GROUP BY identity ORDER BY steps DESC, last DESC, identity LIMIT ?
        """
        return self._ask(lambda files: files[-64:], sql, [limit])

    def search(self, wanted: Filter, after: Place | None = None, limit: int = MOST_HITS) -> Hits:
        """Search file after file until there are enough hits or the time is up, so that a response
        is quick however large the run is. ``next`` is where to continue, or None at the end."""
        _check_regex(wanted.regex)
        condition, values = wanted.sql()
        sql = f"""
            SELECT {_BRIEF} FROM {{}} WHERE {condition} AND (step, "group", "index") > (?, ?, ?)
            ORDER BY step, "group", "index" LIMIT ?
        """
        place = after or (-1, 0, 0)
        all_files = self.files()
        files = [f for f in all_files if f.last >= place[0] and wanted.may_be_in(f.first, f.last)]
        rows: list[dict[str, Any]] = []
        ends = time.monotonic() + _TURN_S
        at, several = 0, 1
        while at < len(files):
            here = files[at : at + several]
            searched = all_files.index(here[0]) / len(all_files)
            before = (here[0].first - 1, _HIGH, _HIGH)
            if at > 0 and time.monotonic() > ends:
                return Hits(rows, before, searched)
            try:
                found = _rows(_query(here, sql, [*values, *place, limit - len(rows)]))
            except FilesMerged:  # the next turn finds their rollouts in the merged file
                return Hits(rows, max(place, before), searched)
            rows += [_brief(row) for row in found]
            if len(rows) >= limit:
                last = rows[-1]
                return Hits(rows, (last["step"], last["group"], last["index"]), searched)
            at += several
            several = min(2 * several, _FILES_A_TURN)
        return Hits(rows, None, 1.0)

    def export(self, wanted: Filter, limit: int = MOST_EXPORTED) -> pa.Table:
        """Return all columns of the hits but the tokens, as a table."""
        _check_regex(wanted.regex)
        condition, values = wanted.sql()
        sql = f"""
            SELECT * EXCLUDE (segments) FROM {{}} WHERE {condition}
            ORDER BY step, "group", "index" LIMIT ?
        """

        def may_match(files: list[RolloutFile]) -> list[RolloutFile]:
            return [file for file in files if wanted.may_be_in(file.first, file.last)]

        return self._read(may_match, sql, [*values, limit])

    def component_names(self) -> list[str]:
        """Return the names of the reward's components in the last file."""
        sql = "SELECT DISTINCT unnest(map_keys(components)) AS name FROM {} ORDER BY name LIMIT 100"
        return [row["name"] for row in self._ask(lambda files: files[-1:], sql, [])]

    # ---- DuckDB ----

    def _ask(self, choose: Choice, sql: str, values: list[Any]) -> list[dict[str, Any]]:
        """Query some of the files for rows."""
        return _rows(self._read(choose, sql, values))

    def _read(self, choose: Choice, sql: str, values: list[Any]) -> pa.Table:
        """Query some of the files; again if the run merged them in the meantime."""
        for _ in range(_TRIES):
            with suppress(FilesMerged):
                return _query(choose(self.files()), sql, values)
        raise QueryFailed("The files of this run changed while they were read. Try again.")


def _query(files: Sequence[RolloutFile], sql: str, values: list[Any]) -> pa.Table:
    if not files:
        return pa.table({})
    connection = duckdb.connect(":memory:")
    watch = threading.Timer(_PATIENCE_S, connection.interrupt)
    try:
        _confine(connection, [file.path for file in files])
        watch.start()
        return connection.sql(sql.format(_source(files)), params=values).to_arrow_table()
    except duckdb.InterruptException:
        raise QueryFailed(
            f"The query took more than {_PATIENCE_S:.0f} s. Select fewer steps."
        ) from None
    except duckdb.Error as error:
        if not all(file.path.exists() for file in files):
            raise FilesMerged("The run merged files while they were read.") from error
        raise QueryFailed(f"A file of this run cannot be read: {error}") from error
    finally:
        watch.cancel()
        connection.close()


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.to_pylist(maps_as_pydicts="lossy"))


def _source(files: Sequence[RolloutFile]) -> str:
    names = ", ".join(_quoted(str(file.path)) for file in files)
    if files[0].path.name != ROLLOUTS_1:
        return f"read_parquet([{names}], union_by_name=true)"
    with duckdb.connect(":memory:") as connection:
        flat = connection.from_arrow(SCHEMA.empty_table()).project("* EXCLUDE (segments)")
        columns = zip(flat.columns, map(str, flat.types), strict=True)
        kinds = ", ".join(f"{_quoted(name)}: {_quoted(kind)}" for name, kind in columns)
    return (
        "(SELECT * REPLACE (CASE WHEN truncated THEN 'length' ELSE 'stop' END AS stop), "
        f"[] AS segments FROM read_json({names}, format='newline_delimited', "
        f"columns={{{kinds}}}, ignore_errors=true, maximum_object_size=67108864))"
    )


def _confine(connection: Any, paths: Sequence[Path]) -> None:
    """Restrict a connection to some files and a bounded amount of memory."""
    allowed = ", ".join(_quoted(str(path)) for path in paths)
    connection.execute(f"SET memory_limit = '{_MEMORY}'")
    connection.execute("SET temp_directory = ''")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _containing(step: int) -> Choice:
    return lambda files: [file for file in files if file.first <= step <= file.last]


def _spread(steps: Sequence[int], every: int) -> list[int]:
    """Take every n-th step, and the last.

    >>> _spread([1, 2, 3, 4, 5, 6], 4)
    [1, 5, 6]
    """
    return sorted({*steps[:: max(1, every)], *steps[-1:]})


def _check_regex(pattern: str | None) -> None:
    """Refuse a pattern that RE2 cannot compile, before any file is opened."""
    if pattern is None:
        return
    with duckdb.connect(":memory:") as connection:
        try:
            connection.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.Error as error:
            reason = str(error).partition("Error: ")[2] or str(error)
            raise BadFilter(f"The regular expression is not valid for RE2: {reason}") from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    row["components"] = row["components"] or {}
    return row


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    """Return a rollout with its JSON columns parsed and its texts truncated."""
    for name in ("components", "reasons", "digests"):
        row[name] = row.get(name) or {}
    for name in ("messages", "trace"):
        row[name] = _from_json(row.get(name))
    row["segments"] = row.get("segments") or []
    row["cut"] = [
        name for name, value in row.items() if isinstance(value, str) and len(value) > LONGEST_TEXT
    ]
    for name in row["cut"]:
        row[name] = row[name][:LONGEST_TEXT]
    return row


def _from_json(text: Any) -> Any:
    """Return the value of a JSON text; any other text unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
