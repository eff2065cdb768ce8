"""Questions about rollouts: steps, samples, prompts, searches, and files that are not trusted."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mint.watch
from benchmarks.watch.generate import generate
from mint.watch.dashboard.filters import BadFilter, Filter
from mint.watch.dashboard.overview import read_text
from mint.watch.dashboard.query import FilesMerged, QueryFailed, Rollouts, _confine, _query
from mint.watch.dashboard.run_index import RunIndex, RunPlace, UnknownRun
from mint.watch.directory.files import RolloutFile, block_file, step_file
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import RunDirectory
from mint.watch.directory.schema import SEGMENT, build_table


def place_of(path: Path) -> RunPlace:
    return RunIndex([path]).runs()[0]


def test_a_step_has_its_rollouts_in_brief_and_in_order(first: RunPlace) -> None:
    rows = Rollouts(first).of_step(3)
    assert [(row["group"], row["index"]) for row in rows] == [
        (g, i) for g in range(8) for i in range(4)
    ]
    assert {row["step"] for row in rows} == {3}
    assert set(rows[0]["components"]) == {"exact", "close"}
    assert "segments" not in rows[0]


def test_a_sample_has_everything(first: RunPlace) -> None:
    row = Rollouts(first).sample(3, 7, 1)
    assert row is not None
    assert row["messages"][2]["tool_calls"][0]["name"] == "calculator"
    [segment] = row["segments"]
    assert len(segment["tokens"]) == len(segment["pieces"]) == len(segment["mask"])
    assert [x is not None for x in segment["sampler"]] == segment["mask"]
    assert "".join(segment["pieces"]).endswith(row["response"])


def test_a_missing_sample_is_none(first: RunPlace) -> None:
    assert Rollouts(first).sample(3, 99, 0) is None
    assert Rollouts(first).sample(99, 0, 0) is None


def test_a_prompt_is_followed_over_the_steps(first: RunPlace) -> None:
    rollouts = Rollouts(first)
    listed = rollouts.prompts()
    identity = listed[0]["identity"]
    found = rollouts.of_prompts([identity])[identity]
    rows = found["rollouts"]
    assert found["answers"] == len(rows)
    assert len({row["step"] for row in rows}) == listed[0]["steps"]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


def test_long_prompts_that_begin_alike_are_distinguished_by_their_ends(tmp_path: Path) -> None:
    shared = "You are a careful assistant. " * 20
    with mint.watch.record(tmp_path / "long") as record:
        record.step({}, rollouts=[{"prompt": shared + each, "reward": 1} for each in ("A?", "B?")])
    rollouts = Rollouts(place_of(tmp_path / "long"))
    for rows in (rollouts.of_step(1), rollouts.prompts()):
        assert sorted(row["prompt"][-2:] for row in rows) == ["A?", "B?"]
        assert {len(row["prompt"]) for row in rows} == {280}
        assert {row["prompt"][0] for row in rows} == {"…"}


def test_of_a_prompt_with_too_many_answers_steps_are_left_out_evenly(first: RunPlace) -> None:
    rollouts = Rollouts(first)
    listed = rollouts.prompts()[0]
    whole = rollouts.of_prompts([listed["identity"], "unknown"])
    part = rollouts.of_prompts([listed["identity"]], limit=listed["steps"] * 2)
    assert whole["unknown"] == {"identity": "unknown", "answers": 0, "rollouts": []}
    steps = {row["step"] for row in part[listed["identity"]]["rollouts"]}
    assert {listed["first"], listed["last"]} <= steps
    assert len(steps) < listed["steps"]
    assert part[listed["identity"]]["answers"] == whole[listed["identity"]]["answers"]


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (Filter(text="= 1"), lambda row: "= 1" in row["response"] or "= 1" in row["prompt"]),
        (Filter(regex=r"^\d+ \+ \d+ = 9\d$"), lambda row: " = 9" in row["response"]),
        (
            Filter(reward_min=0.2, reward_max=0.6),
            lambda row: row["reward"] is not None and 0.2 <= row["reward"] <= 0.6,
        ),
        (
            Filter(component="exact", component_min=0.5),
            lambda row: row["components"].get("exact", 0) >= 0.5,
        ),
        (Filter(stop="length"), lambda row: row["truncated"]),
        (Filter(error="any"), lambda row: row["error"] is not None),
        (Filter(error="none", step_min=4, step_max=5), lambda row: row["step"] in (4, 5)),
    ],
)
def test_a_search_finds_what_fits_and_nothing_else(
    first: RunPlace, wanted: Filter, holds: object
) -> None:
    rollouts = Rollouts(first)
    everything = [row for step in range(1, 13) for row in rollouts.of_step(step)]
    expected = [row for row in everything if holds(row)]  # type: ignore[operator]
    if wanted.error == "none":
        expected = [row for row in expected if row["error"] is None]
    found, after = [], None
    while True:
        hits = rollouts.search(wanted, after, limit=7)
        found += hits.rows
        after = hits.next
        if after is None:
            break
    assert [(r["step"], r["group"], r["index"]) for r in found] == [
        (r["step"], r["group"], r["index"]) for r in expected
    ]


def test_a_search_in_turns_gives_each_hit_once(first: RunPlace) -> None:
    rollouts = Rollouts(first)
    places, after = [], None
    while True:
        hits = rollouts.search(Filter(), after, limit=50)
        places += [(r["step"], r["group"], r["index"]) for r in hits.rows]
        after = hits.next
        if after is None:
            break
    assert len(places) == len(set(places)) == 12 * 8 * 4


@pytest.mark.parametrize("pattern", ["(", "a{5000}", "(?=look)"])
def test_a_pattern_that_is_invalid_for_RE2_is_refused(first: RunPlace, pattern: str) -> None:
    with pytest.raises(BadFilter, match="regular expression"):
        Rollouts(first).search(Filter(regex=pattern))


def test_a_pattern_that_explodes_elsewhere_takes_linear_time(tmp_path: Path) -> None:
    generate(tmp_path / "r", steps=1, extra=[{"response": "a" * 50_000 + "!"}])
    hits = Rollouts(place_of(tmp_path)).search(Filter(regex="^(a+)+$"))
    assert hits.rows == []


def test_values_of_a_search_are_values_and_never_sql(first: RunPlace) -> None:
    hits = Rollouts(first).search(Filter(text="' OR true --", error="x'; DROP TABLE y"))
    assert hits.rows == []


def test_an_export_has_all_columns_but_the_tokens(first: RunPlace) -> None:
    table = Rollouts(first).export(Filter(step_max=2))
    assert table.num_rows == 2 * 8 * 4
    assert "segments" not in table.column_names
    assert "messages" in table.column_names


def test_merged_files_and_single_ones_give_each_step_once(tmp_path: Path) -> None:
    run = generate(tmp_path / "r", steps=5, groups=2, answers=2)
    parts = [pq.read_table(run / "rollouts" / f"{step:06d}.parquet") for step in range(1, 5)]

    pq.write_table(pa.concat_tables(parts), run / "rollouts" / "000000-000004.parquet")
    (run / "rollouts" / "000001.parquet").unlink()  # 2, 3 and 4 are still there beside it
    rollouts = Rollouts(place_of(tmp_path))
    assert [len(rollouts.of_step(step)) for step in range(1, 6)] == [4] * 5


def test_a_directory_of_the_first_format_opens(tmp_path: Path) -> None:
    row = {
        "step": 1,
        "group": 0,
        "index": 0,
        "identity": "a",
        "prompt": "2+2=",
        "response": "4",
        "reward": 1.0,
        "components": {"exact": 1.0},
        "penalty": 0.0,
        "advantage": 0.5,
        "length": 1,
        "truncated": False,
        "masked": False,
        "error": None,
        "trace": [],
        "version": 0,
        "replaced": False,
    }
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 1.0}\n')
    lines = [json.dumps(row), json.dumps({**row, "index": 1, "reward": 0.0, "truncated": True})]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines) + '\n{"step": 1, "gro')
    rollouts = Rollouts(place_of(tmp_path))
    assert [row["reward"] for row in rollouts.of_step(1)] == [1.0, 0.0]
    assert len(rollouts.search(Filter(stop="length")).rows) == 1
    sample = rollouts.sample(1, 0, 0)
    assert sample is not None
    assert sample["components"] == {"exact": 1.0}
    assert sample["segments"] == []


# ---- what is not trusted ----


def test_a_file_that_is_not_parquet_is_a_message_not_a_crash(tmp_path: Path) -> None:
    run = generate(tmp_path / "r", steps=2, groups=1, answers=1)
    (run / "rollouts" / "000002.parquet").write_bytes(b"PAR1 nonsense PAR1")
    rollouts = Rollouts(place_of(tmp_path))
    assert len(rollouts.of_step(1)) == 1
    with pytest.raises(QueryFailed, match="cannot be read"):
        rollouts.of_step(2)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = generate(tmp_path / "outside" / "secret", steps=1, groups=1, answers=1)
    inside = generate(tmp_path / "inside" / "run", steps=1, groups=1, answers=1)
    (inside / "rollouts" / "000002.parquet").symlink_to(outside / "rollouts" / "000001.parquet")
    (inside / "config.yaml").unlink()
    (inside / "config.yaml").symlink_to(outside / "config.yaml")
    (tmp_path / "inside" / "linked").symlink_to(outside)
    places = RunIndex([tmp_path / "inside"]).runs()
    assert [place.path.name for place in places] == ["run"]
    assert [file.first for file in places[0].rollout_files()] == [1]
    assert read_text(places[0], "config.yaml") is None


def test_a_link_in_place_of_the_rollouts_folder_is_not_followed(tmp_path: Path) -> None:
    outside = generate(tmp_path / "outside", steps=1, groups=1, answers=1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "metrics.jsonl").write_text("")
    (tmp_path / "in" / "rollouts").symlink_to(outside / "rollouts")
    assert Rollouts(place_of(tmp_path / "in")).files() == []


def test_names_of_runs_are_not_paths(runs: Path) -> None:
    index = RunIndex([runs])
    for name in ("..", "../first", "first", "/etc", "first/../second", ""):
        with pytest.raises(UnknownRun):
            index.get(name)


def test_a_connection_reads_its_own_files_only(first: RunPlace, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    connection = duckdb.connect(":memory:")
    _confine(connection, [first.rollout_files()[0].path])
    for statement in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"SELECT * FROM '{first.rollout_files()[1].path}'",
        f"COPY (SELECT 1) TO '{tmp_path}/written.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)
    assert connection.execute(f"SELECT count(*) FROM '{first.rollout_files()[0].path}'").fetchone()


def test_files_that_are_merged_while_they_are_read_are_found_again(tmp_path: Path) -> None:
    run = generate(tmp_path / "r", steps=3, groups=1, answers=2)
    rollouts = Rollouts(place_of(tmp_path))
    listed = rollouts.files()
    parts = [pq.read_table(file.path) for file in listed]
    pq.write_table(pa.concat_tables(parts), run / "rollouts" / "000000-000099.parquet")
    for file in listed:
        file.path.unlink()
    with pytest.raises(FilesMerged):
        _query(listed, "SELECT step FROM {}", [])
    assert [len(rollouts.of_step(step)) for step in (1, 2, 3)] == [2, 2, 2]
    assert len(rollouts.search(Filter()).rows) == 6


def test_an_export_finds_files_again_that_are_merged_after_they_were_listed(
    tmp_path: Path,
) -> None:
    run = generate(tmp_path / "r", steps=3, groups=1, answers=2)

    class MergedOnce(RunPlace):
        def rollout_files(self) -> list[RolloutFile]:
            listed = super().rollout_files()
            if len(listed) > 1:
                parts = [pq.read_table(file.path) for file in listed]
                pq.write_table(pa.concat_tables(parts), block_file(run, 0))
                for file in listed:
                    file.path.unlink()
            return listed

    rollouts = Rollouts(MergedOnce("r", run))
    assert rollouts.export(Filter(step_min=2)).column("step").to_pylist() == [2, 2, 3, 3]


def test_files_from_before_tokens_had_versions_are_read_beside_newer_ones(tmp_path: Path) -> None:
    segment = {"tokens": [5, 6], "mask": [False, True], "sampler": [None, -0.5]}
    table = build_table([{"step": 1, "response": "old", "segments": [segment]}])
    kept = pa.list_(pa.struct([f for f in SEGMENT if f.name != "versions"]))
    old = pa.array([[{**segment, "sampler": [None, -0.5]}]], kept)
    table = table.set_column(table.schema.get_field_index("segments"), "segments", old)
    with RunDirectory(tmp_path / "run") as run:
        run.write_config({})
        run.rollouts(
            [{"step": 2, "response": "", "segments": [{**segment, "versions": [None, 4]}]}]
        )
        pq.write_table(table, step_file(run.path, 1))
        place = RunPlace("run", run.path)
        first, second = (Rollouts(place).sample(step, 0, 0) for step in (1, 2))
        assert first is not None
        assert second is not None
        assert first["segments"][0]["tokens"] == [5, 6]
        assert second["segments"][0]["versions"] == [None, 4]
        run.rollouts([{"step": 1, "index": 1, "response": "more", "segments": [segment]}])
        rows = open_run(run.path).rollouts(1)
        assert [row["response"] for row in rows] == ["old", "more"]
        assert [row["segments"][0]["versions"] for row in rows] == [None, None]
