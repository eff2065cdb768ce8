"""Data files: which are read, and messages for those that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.rl import DataError
from mint.rl.data.file_formats import read_rows

ROWS: list[dict[str, Any]] = [
    {"question": "What is 2 + 2?", "answer": "4"},
    {"question": 'Say "hi",\nplease.', "answer": "hi"},
    {"question": "Größe\u2028?", "answer": "5"},
]


def write_jsonl(path: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")


def write_csv(path: Path, delimiter: str = ",") -> None:
    quoted = [[f'"{value.replace(chr(34), chr(34) * 2)}"' for value in r.values()] for r in ROWS]
    lines = [["question", "answer"], *quoted]
    path.write_bytes("\r\n".join(delimiter.join(line) for line in lines).encode())


def write_arrow(path: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    table = arrow.Table.from_pylist(rows)
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def write_parquet(path: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    arrow.parquet.write_table(arrow.Table.from_pylist(rows), path)


WRITERS = {
    "rows.jsonl": write_jsonl,
    "rows.ndjson": write_jsonl,
    "ROWS.JSONL": write_jsonl,
    "rows.json": lambda path: path.write_text(json.dumps(ROWS)),
    "rows.csv": write_csv,
    "rows.tsv": lambda path: write_csv(path, "\t"),
    "rows.parquet": write_parquet,
    "rows.arrow": write_arrow,
    "marked.jsonl": lambda path: path.write_bytes(
        b"\xef\xbb\xbf" + "\r\n\r\n".join(map(json.dumps, ROWS)).encode()
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    assert [row.fields for row in read_rows(tmp_path / name)] == ROWS


def test_a_row_knows_its_line(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv")
    places = [row.place for row in read_rows(tmp_path / "rows.csv")]
    assert places == [f"{tmp_path / 'rows.csv'}, line {line}" for line in (2, 3, 5)]
    (tmp_path / "rows.jsonl").write_text('\n{"a": 1}\n\n{"a": 2}\n')
    places = [row.place for row in read_rows(tmp_path / "rows.jsonl")]
    assert places == [f"{tmp_path / 'rows.jsonl'}, line {line}" for line in (2, 4)]


@given(st.lists(st.dictionaries(st.text(min_size=1), st.text() | st.integers()), min_size=1))
def test_json_lines_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [row.fields for row in read_rows(path)] == rows


WRONG: dict[str, tuple[str, bytes, str]] = {
    "empty": ("rows.jsonl", b"", "rows.jsonl has no rows"),
    "only blank lines": ("rows.jsonl", b"\n \n", "rows.jsonl has no rows"),
    "an empty list": ("rows.json", b"[]", "rows.json has no rows"),
    "an empty JSON file": ("rows.json", b"", "rows.json has no rows"),
    "only a header": ("rows.csv", b"a,b\n", "rows.csv has no rows"),
    "an ending": ("rows.txt", b"x", "rows.txt ends in '.txt'"),
    "no ending": ("rows", b"x", "rows has no file extension"),
    "half a row": ("rows.jsonl", b'{"a": 1}\n{"a": ', "rows.jsonl, line 2 is not JSON"),
    "a bare value": ("rows.jsonl", b'{"a": 1}\n3\n', "rows.jsonl, line 2 is a number"),
    "null": ("rows.jsonl", b"null\n", "rows.jsonl, line 1 is null"),
    "a list as JSONL": ("rows.jsonl", b'[{"a": 1}]\n', "Rename it to rows.json."),
    "JSONL as JSON": ("rows.json", b'{"a": 1}\n{"a": 2}\n', "Rename it to rows.jsonl."),
    "an object as JSON": ("rows.json", b'{"data": []}', "it must be a list of rows"),
    "broken JSON": ("rows.json", b'[{"a": 1},\n{"a" 2}]', "line 2, column 6"),
    "a value in JSON": ("rows.json", b'[{"a": 1}, "b"]', "rows.json, row 2 is a string"),
    "deep nesting": ("rows.jsonl", b"[" * 100_000, "nested too deeply"),
    "Latin-1": ("rows.jsonl", b'{"a": 1}\n{"a": "\xe4"}\n', "line 2: byte 8 of the line is not"),
    "Latin-1 in CSV": ("rows.csv", b"a\n\xe4\n", "rows.csv, line 2: byte 1 of the line is not"),
    "UTF-16": ("rows.jsonl", '{"a": 1}'.encode("utf-16"), "iconv -f UTF-16 -t UTF-8 rows.jsonl"),
    "binary": ("rows.csv", b"a\n\0\n", "line 2: contains a zero byte"),
    "too few cells": ("rows.csv", b"a,b\n1,2\n3\n", "line 3 has 1 cells, and the header has 2"),
    "too many cells": ("rows.csv", b"a,b\n1,2,3\n", "Put cells with commas into double quotes"),
    "an open quote": ("rows.csv", b'a,b\n1,"2\n', "rows.csv, line 2: unexpected end of data"),
    "a column twice": ("rows.csv", b"a,a\n1,2\n", "line 1: the header has the column 'a' twice"),
    "a nameless column": ("rows.csv", b"a,\n1,2\n", "line 1: the header has a column without"),
    "no Parquet": ("rows.parquet", b"{}", "rows.parquet is not a readable Parquet file"),
    "no Arrow": ("rows.arrow", b"{}", "rows.arrow is not a readable Arrow file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_used_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    file, content, told = WRONG[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError) as error:
        read_rows(tmp_path / file)
    assert told in str(error.value)
    assert str(tmp_path / file) in str(error.value)


def test_a_missing_file_is_reported_with_the_files_that_exist(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"There is no file .*tran\.jsonl\. Did you mean 'train"):
        read_rows(tmp_path / "tran.jsonl")
    with pytest.raises(DataError, match=r"Data files in .*: train.jsonl. Set task.arguments.file="):
        read_rows(tmp_path / "x.csv")
    with pytest.raises(DataError, match="There is no folder"):
        read_rows(tmp_path / "data" / "train.jsonl")


def saved(folder: Path, count: int, split: str | None = None) -> None:
    """Write what ``Dataset.save_to_disk`` does, in two shards."""
    folder.mkdir(parents=True)
    names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    for i, name in enumerate(names):
        write_arrow(folder / name, [{"n": n} for n in range(i, count, 2)])
    state = {"_data_files": [{"filename": name} for name in names], "_split": split}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def numbers(folder: Path, split: str | None = None) -> list[int]:
    return [row.fields["n"] for row in read_rows(folder, split)]


def test_a_saved_dataset_is_read_with_all_its_shards(tmp_path: Path) -> None:
    saved(tmp_path / "one", 5)
    assert numbers(tmp_path / "one") == [0, 2, 4, 1, 3]
    saved(tmp_path / "two" / "train", 4)
    saved(tmp_path / "two" / "test", 2)
    (tmp_path / "two" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert numbers(tmp_path / "two") == [0, 2, 1, 3]
    assert numbers(tmp_path / "two", "test") == [0, 1]
    with pytest.raises(DataError, match=r"has no split 'dev'; it has train, test\. Set task"):
        read_rows(tmp_path / "two", "dev")
    (tmp_path / "two" / "test" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"lists data-00001-of-00002.arrow, which does not exist"):
        read_rows(tmp_path / "two", "test")


def test_a_downloaded_dataset_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        write_parquet(tmp_path / "data" / f"{name}.parquet", [{"n": 1}, {"n": 2}])
    (tmp_path / "README.md").write_text("a card")
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert numbers(tmp_path) == [1, 2, 1, 2]
    assert numbers(tmp_path, "test") == [1, 2]
    with pytest.raises(DataError, match=r"has no split 'valid'; it has test, train\."):
        read_rows(tmp_path, "valid")


def test_a_folder_that_could_mean_several_things_is_refused(tmp_path: Path) -> None:
    for config in ("main", "socratic"):
        (tmp_path / config).mkdir()
        write_jsonl(tmp_path / config / "train.jsonl")
    with pytest.raises(DataError, match=r"in several folders: .*main, .*socratic. Name one"):
        read_rows(tmp_path)
    write_parquet(tmp_path / "main" / "train.parquet")
    with pytest.raises(DataError, match="in several formats"):
        read_rows(tmp_path / "main")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="has no data files"):
        read_rows(tmp_path / "nothing")
    write_jsonl(tmp_path / "nothing" / "test.jsonl")
    with pytest.raises(DataError, match="has no split 'train'; it has test"):
        read_rows(tmp_path / "nothing")
    with pytest.raises(DataError, match="is a single file without splits"):
        read_rows(tmp_path / "main" / "train.jsonl", "test")
