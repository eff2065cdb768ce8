"""The machine itself: what its products and its memory can do, measured between the others."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.ceilings import measure
from benchmarks.cpu.answering import Handler, serve, versions
from benchmarks.cpu.workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--size", type=int, help="of the large product")
    options = parser.parse_args()

    def prepare() -> tuple[dict[str, Handler], dict[str, Any]]:
        work = Workload.load(options.workload)
        config = json.loads((Path(work.model) / "config.json").read_text())

        def ceilings() -> dict[str, Any]:
            return measure(config, rows=work.answers, device="cpu", size=options.size)

        return {"measure": ceilings}, versions("torch")

    serve(prepare)


if __name__ == "__main__":
    main()
