"""Tables that grow while they are read."""

from __future__ import annotations

from pathlib import Path

from mint.watch.dashboard.tail import Tail


def test_only_whole_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    tail = Tail(path)
    assert tail.refresh() == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert tail.refresh() == [{"step": 1}, {"step": 2}]
    assert tail.generation == 0


def test_a_file_that_was_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = Tail(path)
    tail.refresh()
    path.write_text('{"step": 1}\n')
    assert tail.refresh() == [{"step": 1}]
    assert tail.generation == 1


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    tail = Tail(path)
    tail.refresh()
    path.write_text('{"step": 7, "a": 1}\n{"step": 8}\n')
    assert tail.refresh() == [{"step": 7, "a": 1}, {"step": 8}]


def test_lines_that_are_no_objects_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    deep = "[" * 100_000
    path.write_text(f'nonsense\n[1]\n{deep}\n{{"step": 1, "x": NaN}}\n')
    assert Tail(path).refresh() == [{"step": 1, "x": None}]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"step": 1}\n')
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "secret")
    assert Tail(tmp_path / "metrics.jsonl").refresh() == []


def test_a_folder_in_place_of_a_table_has_no_rows(tmp_path: Path) -> None:
    assert Tail(tmp_path).refresh() == []
