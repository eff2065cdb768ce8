"""``mint watch`` on the command line: its mistakes, its demo and its bundles."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks.watch.generate import generate
from mint.commands.shared.output import Mistake
from mint.commands.training.watch import watch
from mint.watch.dashboard.bundle import NoRuns, spread
from mint.watch.dashboard.overview import Tables
from mint.watch.dashboard.query import Rollouts
from mint.watch.dashboard.run_index import DEMO, RunIndex
from mint.watch.dashboard.server import list_runs


def test_a_missing_folder_suggests_the_demo(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="mint watch --demo"):
        watch([str(tmp_path / "nothing")])


def test_other_machines_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="--key"):
        watch([str(tmp_path)], host="0.0.0.0", key=None)


def test_a_port_in_use_is_reported_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Mistake, match=f"cannot listen on 127.0.0.1:{port}"):
            watch([str(tmp_path)], port=port, host="127.0.0.1", key=None)


def test_a_bundle_is_one_file_and_names_no_folder_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = generate(tmp_path / "secret-place" / "small", steps=3, groups=2, answers=2)
    target = tmp_path / "small.html"
    watch(["bundle", str(run)], output=target, size=1.0)
    assert "rollouts of 3 of 3 steps" in capsys.readouterr().out
    page = target.read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page.partition("<body>")[0].partition("Content-Security-Policy")[2][:400]
    assert "secret-place" not in page


def test_a_bundle_is_a_folder_where_one_is_named(tmp_path: Path) -> None:
    run = generate(tmp_path / "small", steps=1, groups=1, answers=1)
    for output in (tmp_path / "new" / "folder", tmp_path / "new"):
        watch(["bundle", str(run)], output=output, size=1.0)
        assert (output / "index.html").read_text().startswith("<!doctype html>")
    (tmp_path / "taken").touch()
    with pytest.raises(Mistake, match=r"cannot create the folder .*taken.*--output NAME\.html"):
        watch(["bundle", str(run)], output=tmp_path / "taken", size=1.0)


def test_a_bundle_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoRuns, match="no run in"):
        watch(["bundle", str(tmp_path)], output=tmp_path / "x.html")


def test_steps_of_a_bundle_are_spread_evenly() -> None:
    assert list(spread([])) == []
    assert list(spread([7])) == [7]
    assert sorted(spread(range(1, 100))) == list(range(1, 100))
    assert set(list(spread(range(1, 101)))[:3]) == {1, 50, 100}


def test_the_demo_is_a_real_run_of_few_bytes() -> None:
    files = [path for path in DEMO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000
    index = RunIndex([DEMO])
    [run] = list_runs(index, Tables())
    assert run["verdict"]["evidence"]
    rollouts = Rollouts(index.runs()[0])
    sample = rollouts.sample(run["step"], 0, 0)
    assert sample is not None
    assert sample["segments"][0]["pieces"]
