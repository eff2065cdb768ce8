"""Rollouts as columns: the schema of ``rollouts/*.parquet``, and rows from and to it."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from mint.watch.directory.files import plain

Row = Mapping[str, Any]
_PAIR = ("key", "value")


@cache
def segment_type() -> pa.DataType:
    """Return the type of one segment: the tokens of one context."""
    return pa.struct(
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


@cache
def schema() -> pa.Schema:
    """Return the columns of a rollout."""
    return pa.schema(
        [
            ("step", pa.int32()),
            ("group", pa.int32()),
            ("index", pa.int32()),
            ("identity", pa.string()),
            ("prompt", pa.string()),
            ("messages", pa.string()),
            ("response", pa.string()),
            ("reward", pa.float64()),
            ("components", pa.map_(pa.string(), pa.float64())),
            ("reasons", pa.map_(pa.string(), pa.string())),
            ("penalty", pa.float64()),
            ("advantage", pa.float64()),
            ("length", pa.int32()),
            ("truncated", pa.bool_()),
            ("stop", pa.string()),
            ("masked", pa.bool_()),
            ("error", pa.string()),
            ("traceback", pa.string()),
            ("trace", pa.string()),
            ("version", pa.int32()),
            ("digests", pa.map_(pa.int32(), pa.string())),
            ("replaced", pa.bool_()),
            ("sampled_at", pa.float64()),
            ("segments", pa.list_(segment_type())),
        ],
        metadata={"mint.format": "2"},
    )


@cache
def repeated_columns() -> list[str]:
    """Return the Parquet columns whose values repeat: text. A dictionary would make the numbers
    of tokens larger and slower to write."""
    texts = [field.name for field in schema() if pa.types.is_string(field.type)]
    texts += [f"{name}.key_value.{part}" for name in ("components", "reasons") for part in _PAIR]
    return [*texts, "digests.key_value.value", "segments.list.element.pieces.list.element"]


def build_table(rows: Iterable[Row]) -> pa.Table:
    """Build the table of some rollouts. What a row leaves out is null, zero or empty.

    >>> table = build_table([{"step": 3, "response": "8", "reward": 1.0}])
    >>> read_table(table)[0]["reward"], read_table(table)[0]["components"]
    (1.0, {})
    """
    given = list(rows)
    columns = []
    for field in schema():
        if field.name == "segments":
            columns.append(_segments([row.get("segments") or [] for row in given]))
        else:
            read: Callable[[Any], Any] = _READ.get(field.name, _optional_text)
            columns.append(pa.array([read(row.get(field.name)) for row in given], field.type))
    return pa.Table.from_arrays(columns, schema=schema())


def read_table(table: pa.Table, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Turn a table, or some columns of one, into rows of Python values.

    A table of an earlier version may lack some of the ``columns`` (None: all).
    """
    rows: list[dict[str, Any]] = table.to_pylist()
    wanted = columns if columns is not None else schema().names
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
    return table if table.schema.equals(schema()) else build_table(read_table(table))


def current_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows of format 1 with all current columns.

    >>> current_rows([{"step": 1, "response": "8", "reward": 1.0, "truncated": False}])[0]["stop"]
    'stop'
    """
    stops = {True: "length", False: "stop"}
    given = ({"stop": stops[bool(row.get("truncated"))], **row} for row in rows)
    return read_table(build_table(given))


# ---- values ----


def clean(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode.

    >>> clean("a\\ud800")
    'a\\\\ud800'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _text(value: Any) -> str:
    return "" if value is None else clean(str(value))


def _optional_text(value: Any) -> str | None:
    return None if value is None else clean(str(value))


def _optional_number(value: Any) -> float | None:
    found = None if value is None else float(value)
    return found if found is None or math.isfinite(found) else None


def _json(value: Any) -> str | None:
    if not value:
        return None
    return clean(json.dumps(plain(value), ensure_ascii=False, default=repr))


def _numbers(value: Any) -> list[tuple[str, float | None]]:
    return [(clean(str(name)), _optional_number(x)) for name, x in dict(value or {}).items()]


def _texts(value: Any) -> list[tuple[str, str]]:
    return [(clean(str(name)), _text(x)) for name, x in dict(value or {}).items()]


_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("step", "group", "index", "length", "version"), lambda value: int(value or 0)),
    **dict.fromkeys(("identity", "prompt", "response"), _text),
    **dict.fromkeys(("reward", "advantage", "sampled_at"), _optional_number),
    **dict.fromkeys(("truncated", "masked", "replaced"), bool),
    **dict.fromkeys(("messages", "trace"), _json),
    "penalty": lambda value: _optional_number(value) or 0.0,
    "digests": lambda value: [(int(version), _text(x)) for version, x in (value or {}).items()],
    "components": _numbers,
    "reasons": _texts,
}


# ---- tokens: built from flat arrays, which is ten times as fast as from nested Python values ----


def _segments(rows: Sequence[Sequence[Row]]) -> pa.Array:
    flat = [segment for row in rows for segment in row]
    for segment in flat:
        _check_lengths(segment)
    masks = [segment.get("mask") for segment in flat]
    mask = [None if each is None else np.asarray(each, dtype=bool) for each in masks]
    fields: list[pa.Array] = []
    for field in segment_type():
        lists = [segment.get(field.name) for segment in flat]
        if pa.types.is_floating(field.type.value_type):
            hidden = mask if field.name != "advantages" else [None] * len(flat)
            fields.append(_lists(lists, _floats(lists, hidden), field.type))
        elif pa.types.is_string(field.type.value_type):
            fields.append(_lists(lists, _strings(lists), field.type))
        else:
            values = list(chain.from_iterable(each or () for each in lists))
            fields.append(_lists(lists, pa.array(values, field.type.value_type), field.type))
    structs = pa.StructArray.from_arrays(fields, fields=list(segment_type()))
    return pa.ListArray.from_arrays(_offsets([len(row) for row in rows]), structs)


def _check_lengths(segment: Row) -> None:
    lengths = {name: len(each) for name, each in segment.items() if each is not None}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(
            f"The lists of a segment have different lengths: {shown}. Each needs one value per "
            "token; use None where a token has none."
        )


def _lists(lists: Sequence[Any], values: pa.Array, kind: pa.DataType) -> pa.Array:
    missing = pa.array([each is None for each in lists], pa.bool_())
    offsets = _offsets([0 if each is None else len(each) for each in lists])
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=missing)


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
    parts, hidden = [], []
    for each, mask in zip(lists, masks, strict=True):
        if each is None:
            continue
        values = np.asarray(each, dtype=np.float32)  # None becomes NaN
        parts.append(values)
        known = np.isfinite(values)
        hidden.append(~known if mask is None else ~(mask & known))
    if not parts:
        return pa.array([], pa.float32())
    return pa.array(np.concatenate(parts), pa.float32(), mask=np.concatenate(hidden))
