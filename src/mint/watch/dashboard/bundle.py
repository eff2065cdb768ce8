"""A run as one HTML file that opens without a server.

The page is the dashboard's own; the responses of its server are in the file, compressed. If a run
is larger than the file may be, the rollouts of some steps are left out, and all curves stay.
"""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mint.watch.dashboard import server
from mint.watch.dashboard.overview import Tables
from mint.watch.dashboard.query import Rollouts
from mint.watch.dashboard.run_index import RunIndex, RunPlace
from mint.watch.dashboard.server import ASSETS, PlainJson
from mint.watch.directory.files import replace_file

_MOST_PROMPTS = 100
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])(\.{1,2}/[^"']+)\2""")
_PREFIX = "mint/"


class NoRuns(ValueError):
    """There is nothing to bundle."""


def write_bundle(folders: Sequence[Path], target: Path, limit: int) -> str:
    """Write runs, with at most ``limit`` bytes of rollouts, to an HTML file; describe it."""
    index, tables = RunIndex(folders), Tables()
    places = index.runs()
    if not places:
        names = ", ".join(str(folder) for folder in folders)
        raise NoRuns(f"There is no run in {names}. Name a folder that contains a metrics.jsonl.")
    runs = [{**run, "path": run["name"]} for run in server.list_runs(index, tables)]
    answers: dict[str, Any] = {"runs": {"runs": runs}}
    answers["about"] = {"service": False, "demo": False, "bundle": True}
    kept = total = 0
    for place in places:
        at = f"runs/{place.id}"
        answers[at] = {**server.describe(place, tables), "path": place.path.name}
        answers[f"{at}/metrics"] = server.metrics_since(place, tables, {})
        answers[f"{at}/events"] = server.events_since(place, tables, {})
        found, steps, every = _rollouts(place, tables, limit // len(places))
        answers |= found
        kept, total = kept + steps, total + every
    replace_file(target, page(answers).encode(), durable=False)
    megabytes = target.stat().st_size / 1024 / 1024
    return f"{megabytes:.1f} MB, rollouts of {kept} of {total} steps"


def _rollouts(place: RunPlace, tables: Tables, limit: int) -> tuple[dict[str, Any], int, int]:
    """Return the answers about rollouts, and how many steps they cover of how many."""
    rollouts, at = Rollouts(place), f"runs/{place.id}"
    logged = tables.of(place).metrics.rows
    steps = sorted({row["step"] for row in logged if isinstance(row.get("step"), int)} - {0})
    answers: dict[str, Any] = {}
    used = kept = 0
    for step in spread(steps):
        rows = rollouts.of_step(step)
        if not rows:
            continue
        found: dict[str, Any] = {f"{at}/steps/{step}": {"step": step, "rollouts": rows}}
        for row in rollouts.samples(step):
            found[f"{at}/samples/{step}/{row['group']}/{row['index']}"] = row
        size = len(PlainJson(found).body)
        if used + size > limit and kept:
            break
        answers |= found
        used, kept = used + size, kept + 1
    prompts = rollouts.prompts(_MOST_PROMPTS)
    named = rollouts.of_prompts([prompt["identity"] for prompt in prompts])
    for identity, found in named.items():
        size = len(PlainJson(found).body)
        if used + size > 2 * limit:
            break
        answers[f"{at}/prompt?{identity}"] = found
        used += size
    listed = [p for p in prompts if f"{at}/prompt?{p['identity']}" in answers]
    answers[f"{at}/prompts"] = {"prompts": listed}
    return answers, kept, len(steps)


def spread(steps: Sequence[int]) -> list[int]:
    """Return the last and the first step, then the one halfway between, and so on.

    >>> spread([1, 2, 3, 4, 5])
    [5, 1, 3, 2, 4]
    """
    last = len(steps) - 1
    places, parts = dict.fromkeys([last, 0]), 2
    while len(places) < len(steps):
        places |= dict.fromkeys(last * part // parts for part in range(1, parts))
        parts *= 2
    return [steps[place] for place in places] if steps else []


# ---- the page ----


def page(answers: dict[str, Any]) -> str:
    """Return the HTML of the dashboard with its modules, styles and answers in it."""
    scripts = [path.relative_to(ASSETS) for path in sorted(ASSETS.rglob("*.js"))]
    imports = {f"{_PREFIX}{script.as_posix()}": _data_url(script) for script in scripts}
    styles = "".join((ASSETS / name).read_text() for name in ("vendor/uplot.css", "style.css"))
    import_map = json.dumps({"imports": imports})
    start = f'import "{_PREFIX}app.js";'
    packed = base64.b64encode(gzip.compress(PlainJson(answers).body, mtime=0)).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(import_map)}' '{_hash(start)}' data:; "
        f"style-src '{_hash(styles)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head, _, rest = (ASSETS / "index.html").read_text().partition('<link rel="stylesheet"')
    _, end_of_head, body = rest.partition("</head>")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head = head.replace("<meta name", f"{meta}<meta name", 1)
    head += f'<style>{styles}</style>\n<script type="importmap">{import_map}</script>\n'
    carried = f'<script type="text/plain" id="bundle">{packed}</script>\n'
    carried += f'<script type="module">{start}</script>\n'
    return head + end_of_head + body.replace("</body>", f"{carried}</body>")


def _data_url(script: Path) -> str:
    """Return a module as a data URL; its imports become names of the import map."""

    def renamed(match: re.Match[str]) -> str:
        target = os.path.normpath(script.parent / match[3])
        return f"{match[1]}{match[2]}{_PREFIX}{target}{match[2]}"

    source = _IMPORT.sub(renamed, (ASSETS / script).read_text())
    return f"data:text/javascript;base64,{base64.b64encode(source.encode()).decode()}"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
