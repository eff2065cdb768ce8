"""Write the table and the picture of a comparison that was made, on any machine:

python -m benchmarks.trl.report DIR
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.trl.picture import draw
from benchmarks.trl.runs import Comparison
from benchmarks.trl.table import table

RESULTS = "results.json"


def report(folder: Path) -> Comparison:
    """Print the table of a folder's ``results.json``; write it and the picture beside it."""
    comparison = Comparison.load(folder / RESULTS)
    text = table(comparison)
    print(text)
    (folder / "table.md").write_text(text)
    if find_spec("matplotlib"):
        draw(comparison, folder / "reward.svg")
    else:
        print(
            "There is no picture: matplotlib is missing. Where it is installed, type: "
            f"python -m benchmarks.trl.report {folder}"
        )
    return comparison


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Type: python -m benchmarks.trl.report DIR (a folder with results.json)")
    report(Path(sys.argv[1]))
