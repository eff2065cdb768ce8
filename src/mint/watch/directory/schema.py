"""Rollouts as columns: the schema of ``rollouts/*.parquet``, and rows from and to it."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from mint.watch.directory.files import plain

Row = Mapping[str, Any]


def clean(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode.

    >>> clean("a\\ud800")
    'a\\\\ud800'
    """
    return text.encode(errors="backslashreplace").decode()


def _text(value: Any) -> str:
    return "" if value is None else clean(str(value))


def _optional_number(value: Any) -> float | None:
    found = None if value is None else float(value)
    return found if found is None or math.isfinite(found) else None


def _json(value: Any) -> str | None:
    if not value:
        return None
    return clean(json.dumps(plain(value), ensure_ascii=False, default=repr))


def _pairs(key: Callable[[Any], Any], read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: [(key(name), read(x)) for name, x in dict(value or {}).items()]


SEGMENT = pa.struct(
    [
        ("tokens", pa.list_(pa.int32())),
        ("pieces", pa.list_(pa.string())),
        ("mask", pa.list_(pa.bool_())),
        ("versions", pa.list_(pa.int32())),
        ("sampler", pa.list_(pa.float32())),
        ("trainer", pa.list_(pa.float32())),
        ("advantages", pa.list_(pa.float32())),
        ("entropy", pa.list_(pa.float32())),
    ]
)
"""A segment: the tokens of one context."""

_Column = tuple[pa.DataType, Callable[[Any], Any]]
_INTEGER: _Column = (pa.int32(), lambda value: int(value or 0))
_NUMBER: _Column = (pa.float64(), _optional_number)
_FLAG: _Column = (pa.bool_(), bool)
_TEXT: _Column = (pa.string(), _text)
_OPTIONAL_TEXT: _Column = (pa.string(), lambda value: None if value is None else _text(value))
_JSON: _Column = (pa.string(), _json)
_COLUMNS: dict[str, _Column] = {
    "step": _INTEGER,
    "group": _INTEGER,
    "index": _INTEGER,
    "identity": _TEXT,
    "prompt": _TEXT,
    "messages": _JSON,
    "response": _TEXT,
    "reward": _NUMBER,
    "components": (pa.map_(pa.string(), pa.float64()), _pairs(_text, _optional_number)),
    "reasons": (pa.map_(pa.string(), pa.string()), _pairs(_text, _text)),
    "penalty": (pa.float64(), lambda value: _optional_number(value) or 0.0),
    "advantage": _NUMBER,
    "length": _INTEGER,
    "truncated": _FLAG,
    "stop": _OPTIONAL_TEXT,
    "masked": _FLAG,
    "error": _OPTIONAL_TEXT,
    "traceback": _OPTIONAL_TEXT,
    "trace": _JSON,
    "version": _INTEGER,
    "digests": (pa.map_(pa.int32(), pa.string()), _pairs(int, _text)),
    "replaced": _FLAG,
    "sampled_at": _NUMBER,
}
"""The type of each column, and how its values are read from a row."""

SCHEMA = pa.schema(
    [*((name, kind) for name, (kind, _) in _COLUMNS.items()), ("segments", pa.list_(SEGMENT))],
    metadata={"mint.format": "2"},
)
REPEATED = [
    *(field.name for field in SCHEMA if pa.types.is_string(field.type)),
    *("components.key_value.key", "components.key_value.value"),
    *("reasons.key_value.key", "reasons.key_value.value"),
    *("digests.key_value.value", "segments.list.element.pieces.list.element"),
]
"""The Parquet columns whose values repeat: text. A dictionary would make the numbers of tokens
larger and slower to write."""


def build_table(rows: Iterable[Row]) -> pa.Table:
    """Build the table of some rollouts. What a row leaves out is null, zero or empty.

    >>> table = build_table([{"step": 3, "response": "8", "reward": 1.0}])
    >>> read_table(table)[0]["reward"], read_table(table)[0]["components"]
    (1.0, {})
    """
    given = list(rows)
    columns = [
        pa.array([read(row.get(name)) for row in given], kind)
        for name, (kind, read) in _COLUMNS.items()
    ]
    segments = _segments([row.get("segments") or [] for row in given])
    return pa.Table.from_arrays([*columns, segments], schema=SCHEMA)


def read_table(table: pa.Table, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Turn a table of any version into rows of Python values with ``columns``, or with all."""
    rows: list[dict[str, Any]] = table.to_pylist()
    wanted = columns if columns is not None else SCHEMA.names
    absent = dict.fromkeys(name for name in wanted if name not in table.column_names)
    for row in rows:
        row.update(absent)
        for name in ("components", "reasons", "digests"):
            if name in row:
                row[name] = dict(row[name] or [])
        if "trace" in row:
            row["trace"] = json.loads(row["trace"]) if row["trace"] else []
        if row.get("messages"):
            row["messages"] = json.loads(row["messages"])
        if "segments" in row:
            row["segments"] = row["segments"] or []
    return rows


def current(table: pa.Table) -> pa.Table:
    """Return a table with all current columns; one of an earlier version may lack some."""
    return table if table.schema.equals(SCHEMA) else build_table(read_table(table))


def current_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows of format 1 with all current columns.

    >>> current_rows([{"step": 1, "response": "8", "reward": 1.0, "truncated": False}])[0]["stop"]
    'stop'
    """
    stops = {True: "length", False: "stop"}
    given = ({"stop": stops[bool(row.get("truncated"))], **row} for row in rows)
    return read_table(build_table(given))


# ---- tokens: built from flat arrays, which is ten times as fast as from nested Python values ----


def _segments(rows: Sequence[Sequence[Row]]) -> pa.Array:
    flat = [segment for row in rows for segment in row]
    for segment in flat:
        _check_lengths(segment)
    masks = [segment.get("mask") for segment in flat]
    sampled = [None if mask is None else np.asarray(mask, dtype=bool) for mask in masks]
    fields: list[pa.Array] = []
    for field in SEGMENT:
        lists = [segment.get(field.name) for segment in flat]
        kind = field.type.value_type
        if pa.types.is_floating(kind):
            shown = sampled if field.name != "advantages" else [None] * len(flat)
            values = _floats(lists, shown)
        elif pa.types.is_string(kind):
            values = _strings(lists)
        else:
            values = pa.array(list(chain.from_iterable(each or () for each in lists)), kind)
        missing = pa.array([each is None for each in lists], pa.bool_())
        offsets = _offsets([0 if each is None else len(each) for each in lists])
        fields.append(pa.ListArray.from_arrays(offsets, values, type=field.type, mask=missing))
    structs = pa.StructArray.from_arrays(fields, fields=list(SEGMENT))
    return pa.ListArray.from_arrays(_offsets([len(row) for row in rows]), structs)


def _check_lengths(segment: Row) -> None:
    lengths = {name: len(each) for name, each in segment.items() if each is not None}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(
            f"The lists of a segment have different lengths: {shown}. Each needs one value per "
            "token; use None where a token has none."
        )


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _strings(lists: Sequence[Any]) -> pa.Array:
    texts = [text for each in lists for text in each or ()]
    try:
        return pa.array(texts, pa.string())
    except (UnicodeEncodeError, pa.ArrowException):  # a lone surrogate, or no text at all
        return pa.array([clean(str(text)) for text in texts], pa.string())


def _floats(lists: Sequence[Any], masks: Sequence[Any]) -> pa.Array:
    """Concatenate the numbers of all segments; null if not sampled or not finite."""
    parts = [np.zeros(0, dtype=np.float32)]
    for each, mask in zip(lists, masks, strict=True):
        if each is not None:
            values = np.array(each, dtype=np.float32)  # None becomes NaN
            known = np.isfinite(values)
            values[~(known if mask is None else known & mask)] = np.nan
            parts.append(values)
    return pa.array(np.concatenate(parts), from_pandas=True)  # NaN becomes null
