"""Measure the engine alone on a random model of a real shape.

    PYTHONPATH=src python3 -m benchmarks.gpu --peers --out "$OUT/gpu.json"
    PYTHONPATH=src python3 -m benchmarks.gpu --shape 8b --out "$OUT/gpu-8b.json"
    python -m benchmarks.gpu --device cpu --shape 135m --out growth.json        # growth on a CPU
    python -m benchmarks.gpu --device cpu --shape tiny --out /tmp/tiny.json     # does it run?

Each section is caught by itself: one that fails leaves its error in the result and the others run.
The result is written after every section. ``--precision`` names one or several; the first is
measured in all sections, the others only for the gap between sampler and trainer.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.ceilings import measure as measure_ceilings
from benchmarks.gpu import peers, service
from benchmarks.gpu.driver import RANK, Driver
from benchmarks.gpu.sections import SECTIONS, Bench, gap
from benchmarks.gpu.shapes import SHAPES, SPREAD, build
from benchmarks.report import render_text
from mint.engine.engine import Engine
from mint.engine.model.base_model import BaseModel

RESULTS = Path(__file__).resolve().parents[1] / "results"
ALL = ("ceilings", "peers", "service", *SECTIONS)


class Measurement:
    """A result that grows section by section, on disk too."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.shape = SHAPES[options.shape]
        self.result: dict[str, Any] = {
            "kind": "gpu",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "shape": options.shape,
            "config": self.shape.config,
            "sizes": asdict(self.shape.sizes),
            "machine": {
                "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "python": platform.python_version(),
            },
            "settings": {
                "precision": options.precision,
                "rank": RANK,
                "spread": options.spread,
            },
            "sections": self._kept_sections() if options.keep else {},
        }

    def _kept_sections(self) -> dict[str, Any]:
        """Return the sections of the result that is there, each with the day it was measured."""
        if not self.options.out.exists():
            return {}
        before = json.loads(self.options.out.read_text())
        return {k: {"date": before["date"], **s} for k, s in before["sections"].items()}

    def run(self, folder: Path) -> None:
        """Build the model, then measure whatever was asked for."""
        device = self.options.device
        self.section("build", lambda: build(folder, self.shape, device, self.options.spread) or {})
        if "ceilings" in self.options.only:
            self.section("ceilings", lambda: self._measure_ceilings())
        if "peers" in self.options.only and self.options.peers:
            self.section("peers", lambda: peers.measure(folder, self.shape.sizes, device))
        first, *others = self.options.precision
        if "service" in self.options.only and self.options.service:
            # Its engine runs in another process, which ends before ours needs the memory.
            vocabulary = self.shape.config["vocab_size"]
            self.section(
                "service",
                lambda: service.measure(folder, self.shape.sizes, vocabulary, first),
            )
        if set(SECTIONS).intersection(self.options.only):
            self._measure_engine(folder, first)
        for precision in others if "gap" in self.options.only else ():
            self.section(f"gap-{precision}", lambda name=precision: self._measure_gap(folder, name))

    def _measure_ceilings(self) -> dict[str, Any]:
        size = 256 if self.options.shape == "tiny" else None
        rows = self.shape.sizes.answers[-1]
        return measure_ceilings(self.shape.config, rows, self.options.device, size)

    def _measure_engine(self, folder: Path, precision: str) -> None:
        bench: Bench | None = None

        def load() -> dict[str, Any]:
            nonlocal bench
            bench = self._load(folder, precision)
            plan = bench.driver.engine.info.plan
            return {"precision": precision, "plan": asdict(plan) if plan else None}

        self.section("load", load)
        if bench is None:
            return
        for name, measure in SECTIONS.items():
            if name in self.options.only:
                self.section(name, lambda measure=measure: measure(bench))
        bench = None  # the next engine needs its memory

    def _measure_gap(self, folder: Path, precision: str) -> dict[str, Any]:
        return gap(self._load(folder, precision))

    def _load(self, folder: Path, precision: str) -> Bench:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        device = self.options.device
        model = BaseModel.load("random", folder, device=device, precision=precision)
        ceilings = self.result["sections"].get("ceilings", {})
        return Bench(Driver(Engine(model)), self.shape, ceilings)

    def section(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure a section, or note why it could not be."""
        start = time.perf_counter()
        try:
            report = measure()
        except Exception as error:
            traceback.print_exc()
            report = {"error": f"{type(error).__name__}: {error}"[:2000]}
        took = time.perf_counter() - start
        self.result["sections"][name] = {**report, "took": took}
        print(f"{name}: {'failed' if 'error' in report else 'done'} in {took:.1f} s", flush=True)
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(self.result, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="0.6b")
    parser.add_argument("--device", choices=["cuda", "cpu"])
    parser.add_argument("--precision", default="auto,exact,bfloat16", help="default: %(default)s")
    parser.add_argument("--peers", action="store_true", help="transformers in the same run")
    parser.add_argument("--service", action="store_true", help="a GRPO step through a service too")
    parser.add_argument("--only", help=f"sections, of {','.join(ALL)}")
    parser.add_argument(
        "--keep", action="store_true", help="keep the other sections of an earlier result"
    )
    parser.add_argument("--spread", type=float, default=SPREAD, help="of weights: %(default)s")
    parser.add_argument("--folder", type=Path, help="where to build the model; default: a new one")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/gpu[-SHAPE].json")
    options = parser.parse_args()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options.precision = options.precision.split(",")
    defaults = SHAPES[options.shape].sections or ALL
    options.only = options.only.split(",") if options.only else list(defaults)
    if unknown := [name for name in options.only if name not in ALL]:
        parser.error(f"--only: there is no section {unknown[0]}. Choose of {', '.join(ALL)}")
    suffix = "" if options.shape == "0.6b" else f"-{options.shape}"
    options.out = options.out or RESULTS / f"gpu{suffix}.json"
    return options


def main() -> None:
    options = parse()
    measurement = Measurement(options)
    with tempfile.TemporaryDirectory() as scratch:
        measurement.run(options.folder or Path(scratch) / "model")
    print(render_text(measurement.result))
    failed = [name for name, s in measurement.result["sections"].items() if "error" in s]
    print(f"Wrote {options.out}." + (f" Failed: {', '.join(failed)}." if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
