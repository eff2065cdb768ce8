"""Make the pictures of the dashboard in docs/img, of the recorded run of ``mint watch --demo``.

python scripts/screenshots.py [FOLDER]
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_MS = 60_000
COLOURS = 256


def main() -> None:
    """Start the dashboard, walk through it, and save pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/img"
    process = subprocess.Popen(
        [sys.executable, "-m", "mint.cli", "watch", "--demo", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    expect.set_options(timeout=PATIENCE_MS)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for scheme, width, height, views in (
                ("light", 1280, 860, ("curves",)),
                ("light", 1280, 960, ("step",)),
                ("dark", 1280, 860, ("sample",)),
                ("light", 390, 800, ("phone",)),
            ):
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page.set_default_timeout(PATIENCE_MS)
                for view in views:
                    show(page, url, view)
                    save(page, folder / f"watch-{view}.png")
                page.close()
            browser.close()
    finally:
        process.terminate()
        process.wait()


def show(page: Page, url: str, view: str) -> None:
    """Open a view of the recorded run, and wait until it is there."""
    [run] = page.request.get(f"{url}/api/runs").json()["runs"]
    step = run["step"] * 2 // 3
    if view == "phone":
        page.goto(url)
        expect(page.locator("li.run .verdict")).to_be_visible()
        return
    rows = page.request.get(f"{url}/api/runs/{run['id']}/steps/{step}").json()["rollouts"]
    group = most_varied(rows)
    address = {
        "curves": "",
        "step": f"/step/{step}/group/{group}",
        "sample": f"/sample/{step}/{group}/0",
    }
    page.goto(f"{url}/#/run/{run['id']}{address[view]}")
    seen = {
        "curves": page.get_by_role("img", name=re.compile(r"^Reward\. ")),
        "step": page.locator(".side article").first,
        "sample": page.locator(".token.coloured").first,
    }
    expect(seen[view]).to_be_visible()


def most_varied(rows: list[dict[str, Any]]) -> int:
    """Return the group of a step whose answers earned the most different rewards."""
    groups = sorted({row["group"] for row in rows})
    return max(groups, key=lambda g: len({row["reward"] for row in rows if row["group"] == g}))


def save(page: Page, path: Path) -> None:
    """Save what is on the screen as a small PNG."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
