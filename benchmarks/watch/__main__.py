"""Measure the dashboard with a run of 10,000 steps and 1,000,000 rollouts.

    python -m benchmarks.watch runs/big      # made up first, if it is not there

Prints a table: what was opened, how long it took until it was on the screen of a real browser, and
the CPU time of the server, which other work on the machine does not change.
The server is ``mint watch`` in a process of its own; its memory is read at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from benchmarks.watch.generate import generate

Cost = tuple[float, float]
STEPS, GROUPS, ANSWERS = 10_000, 10, 10
ROUNDS = 3
PATIENCE_MS = 60_000


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    if not (path / "metrics.jsonl").exists():
        print(f"Making up {path}: a few minutes.", flush=True)
        generate(path, STEPS, GROUPS, ANSWERS)
    process = subprocess.Popen(
        [sys.executable, "-m", "mint.cli", "watch", str(path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        rows = measure(url, process.pid)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    finally:
        process.terminate()
        process.wait()
    print("| view | seconds | CPU seconds of the server |\n|---|---|---|")
    for name, (seconds, used) in rows.items():
        print(f"| {name} | {seconds:.2f} | {used:.2f} |")
    print(f"\nMemory of the server afterwards: {pages * 4096 / 2**20:.0f} MiB.")


def measure(url: str, server: int) -> dict[str, Cost]:
    """Return the median seconds until each view was on the screen, and the server's CPU time."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        times: dict[str, list[Cost]] = {}
        for _ in range(ROUNDS):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            for name, cost in walk(page, url, server).items():
                times.setdefault(name, []).append(cost)
            page.close()
        browser.close()
    return {
        name: (median(seconds for seconds, _ in found), median(used for _, used in found))
        for name, found in times.items()
    }


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def walk(page: Page, url: str, server: int) -> dict[str, Cost]:
    """Open one view after the other."""
    times: dict[str, Cost] = {}

    def timed(name: str, act: Callable[[], Any], seen: Callable[[], Any]) -> None:
        start, used = time.perf_counter(), cpu_seconds(server)
        act()
        seen()
        times[name] = time.perf_counter() - start, cpu_seconds(server) - used

    def opens(view: str) -> Callable[[], Any]:
        return lambda: page.goto(f"{url}/#/run/{run}{view}")

    timed("first paint", lambda: page.goto(url), lambda: page.wait_for_selector(".top"))
    expect(page.locator("li.run")).to_have_count(1)
    [found] = json.loads(page.request.get(f"{url}/api/runs").text())["runs"]
    run, middle = found["id"], STEPS // 2
    timed(
        "curves of 10,000 steps",
        opens(""),
        lambda: page.get_by_role("img", name=re.compile(r"^Reward\. ")).wait_for(),
    )
    timed("a step", opens(f"/step/{middle}"), lambda: page.locator("a.cell").nth(99).wait_for())
    timed(
        "a sample",
        opens(f"/sample/{middle}/3/3"),
        lambda: page.locator(".token.coloured").first.wait_for(),
    )
    timed("prompts", opens("/prompts"), lambda: page.locator(".list tbody tr").first.wait_for())
    link = page.locator(".list tbody a").first
    timed("a prompt over all steps", link.click, lambda: page.locator(".timeline").wait_for())
    page.goto(f"{url}/#/run/{run}/search")
    page.get_by_label("Text", exact=True).fill("= 100")
    hits = page.locator(".hits tbody tr")
    search = page.get_by_role("button", name="Search")
    timed("a search, first hits", search.click, hits.first.wait_for)
    page.get_by_label("Text", exact=True).fill("there is no such text")
    done = page.get_by_role("status").filter(has_text=re.compile("^0 samples$"))
    timed("a search through 1,000,000 rollouts, no hit", search.click, done.wait_for)
    return times


if __name__ == "__main__":
    main()
