"""The data of docs/results.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import Result, write_numbers


def test_experiments_that_were_not_measured_again_keep_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    write_numbers({name: [Result(name, 0, [{"step": 1}], [])] for name in ("a", "b")}, file)
    write_numbers({"b": [Result("b", 7, [{"step": 2, "reward/mean": 0.5}], [])]}, file)
    rows = [line.split(",")[:4] for line in file.read_text().splitlines()[1:]]
    assert rows == [["a", "0", "1", ""], ["b", "7", "2", "0.5"]]
