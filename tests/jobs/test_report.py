"""The report on a run: from directories of both formats, complete, and safe to open."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mint.cli import app
from mint.rl.recording.report import RIGHT_ANSWERS, write_report
from mint.watch.directory.files import METRICS, ROLLOUTS_1, lines
from mint.watch.directory.recorder import RunDirectory

HOSTILE = "<script>alert(1)</script> | <img src=x onerror=alert(1)> \u202e"


def rows(step: int) -> list[dict[str, Any]]:
    common = {"step": step, "identity": "sum", "prompt": "3 + 5 =", "trace": []}
    return [
        {**common, "index": 0, "response": "8", "reward": 1.0, "components": {"right": 1.0}},
        {**common, "index": 1, "response": "7", "reward": 0.1 * step, "components": {"right": 0.0}},
        {**common, "index": 2, "response": HOSTILE, "reward": 0.0, "reasons": {"right": HOSTILE}},
        {**common, "index": 3, "response": "x", "reward": None, "error": "ValueError: no number"},
    ]


@pytest.fixture(params=[1, 2])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same run in both formats."""
    metrics = [{"step": step, "reward/mean": step / 10, "reward/success": 0.3} for step in (1, 2)]
    if request.param == 2:
        with RunDirectory(tmp_path) as directory:
            directory.write_config({"task": "sums <b>", "steps": 2})
            for row in metrics:
                directory.rollouts(rows(row["step"]))
                directory.metrics(row)
            directory.set_status("finished")
    else:
        old = {"components": {}, "error": None, "truncated": False, "group": 0}
        written = [{**old, **row} for step in (1, 2) for row in rows(step)]
        (tmp_path / "config.yaml").write_text("task: sums <b>\nsteps: 2\n")
        (tmp_path / METRICS).write_bytes(lines(metrics))
        (tmp_path / ROLLOUTS_1).write_bytes(lines(written))
    (tmp_path / RIGHT_ANSWERS).write_bytes(lines([{"identity": "sum", "answer": "8"}]))
    return tmp_path


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, int] = {}
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] = self.found.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}


def test_a_report_is_made_later_from_a_run_of_either_format(run: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0, result.output
    for suffix in ("txt", "json", "md", "html", "svg"):
        assert str(run / f"reward_analysis.{suffix}") in result.output
    data = json.loads((run / "reward_analysis.json").read_text())
    assert (data["count"], data["failed"], data["rollouts"]) == (6, 2, 8)
    assert [row["step"] for row in data["by_step"]] == [1, 2]
    assert {"mean", "variance", "skewness", "q10", "q90"} <= set(data["by_step"][0])
    kinds = {each["type"]: each["count"] for each in data["response_types"]}
    assert kinds["right"] == 2
    assert kinds["not scored: ValueError"] == 2
    assert data["failures"][0]["examples"][0]["answer"] == "8"
    page = (run / "reward_analysis.md").read_text()
    assert "| kind | count | share | mean reward |" in page
    assert "## Common failures" in page


def test_the_page_needs_nothing_else_and_shows_hostile_text_as_text(run: Path) -> None:
    write_report(run)
    page = (run / "reward_analysis.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert not {"script", "img", "link", "iframe"} & set(tags.found)
    assert not any(name.startswith("on") for name in tags.attributes | {"role"} - {"role"})
    assert tags.found["svg"] >= 5
    assert "&lt;script&gt;" in page
    assert "http://www.w3.org/2000/svg" in page
    assert page.count("http") == page.count("http://www.w3.org/2000/svg") + page.count("http-equiv")


def test_a_folder_without_a_run_or_without_rollouts_is_a_mistake(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert "is not a run directory" in str(result.exception)
    (tmp_path / "config.yaml").write_text("steps: 2\n")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert "has no rollouts yet" in str(result.exception)
