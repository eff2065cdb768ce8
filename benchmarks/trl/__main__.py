"""mint and TRL on the same task, one after the other, seed by seed.

    make trl-env
    python -m benchmarks.trl --seeds 0 1 2 --out runs/trl

Leaves ``results.json``, ``table.md`` and ``reward.svg`` in the folder, and what each run printed
and wrote in ``runs/``. The two sides may have different interpreters; both get this repository on
PYTHONPATH before what is there already.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.trl.report import RESULTS, report
from benchmarks.trl.runs import NAMES, SIDES, Comparison, Run, read_rows
from benchmarks.trl.task import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"

# Freed memory is kept, not given back and asked for again with every tensor, which saves TRL time
# on a CPU.
FAST_ON_A_CPU = {
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_MMAP_THRESHOLD_": "10000000000",
}


def main() -> None:
    options = parse()
    settings = Settings.of(options)
    folder: Path = options.out
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    comparison = Comparison(asdict(settings), machine())
    for seed in options.seeds:
        for side in SIDES:
            log = folder / "runs" / f"{side}-{seed}.log"
            print(f"{NAMES[side]}, seed {seed}: running, see {log}", flush=True)
            comparison.runs.append(run(side, seed, settings, options))
            comparison.save(folder / RESULTS)
    report(folder)
    sys.exit(bool(comparison.complaints()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trl", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/trl"), help="the folder to write")
    parser.add_argument("--model", help=f"a folder with weights; default: where {SMOLLM2} is")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of mint's side")
    parser.add_argument(
        "--trl-python",
        default=str(REPOSITORY / ".venvs/trl/bin/python"),
        help="the interpreter of TRL's side",
    )
    parser.add_argument(
        "--trl-arguments", default="", help="more arguments of run_trl, such as --precision=float32"
    )
    parser.add_argument("--limit", type=float, default=14400, help="seconds for one run, at most")
    Settings.add_arguments(parser)
    options = parser.parse_args()
    options.model = options.model or located(SMOLLM2)
    if not Path(options.trl_python).exists():
        parser.error(f"{options.trl_python} is not there. Type: make trl-env, or give --trl-python")
    return options


def located(model: str) -> str:
    """The folder of a model, which is made if need be."""
    from mint.catalog import Catalog

    return str(Catalog().locate(model))


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    return {
        "device": _gpu() or f"CPU, {os.cpu_count()} cores",
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _gpu() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return names.strip().partition("\n")[0]


def run(side: str, seed: int, settings: Settings, options: argparse.Namespace) -> Run:
    """Run one side to its end, or until its limit. A failure is a result too."""
    files = options.out.resolve() / "runs" / f"{side}-{seed}"
    rows, log = files.with_suffix(".jsonl"), files.with_suffix(".log")
    rows.unlink(missing_ok=True)
    python, more = options.python, []
    if side == "trl":
        python, more = options.trl_python, options.trl_arguments.split()
    command = [python, "-m", f"benchmarks.trl.run_{side}", "--model", options.model]
    command += ["--seed", str(seed), "--rows", str(rows), *settings.arguments(), *more]
    error = None
    launched = time.time()
    with tempfile.TemporaryDirectory() as home, log.open("wb") as output:
        try:
            code = subprocess.run(
                command,
                cwd=REPOSITORY,
                env=environment(home),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=options.limit,
                check=False,
            ).returncode
            if code:
                error = f"exit code {code}: {_last_line(log)}"
        except subprocess.TimeoutExpired:
            error = f"not done after {options.limit:.0f} s"
        ended = time.time()
    return Run(side, seed, launched, ended, read_rows(rows), error)


def environment(home: str) -> dict[str, str]:
    """The same for both sides: our code, no network, memory and threads as a CPU likes them."""
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **FAST_ON_A_CPU,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MINT_HOME": home,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


if __name__ == "__main__":
    main()
