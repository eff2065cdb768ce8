"""Record the run that ``mint watch --demo`` shows: SmolLM2-135M learns to add.

    python scripts/record_demo.py          # some minutes on two cores

The run directory goes to src/mint/watch/dashboard/recorded, without what only resuming needs and
without the name of this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mint.watch.directory.reader import open_run

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src/mint/watch/dashboard/recorded/learning-to-add"
SETTINGS = {
    "MINT_BASE_MODEL": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "MINT_RL_STEPS": "30",
    "MINT_RL_BATCH": "8",
    "MINT_RL_GROUP": "8",
    "MINT_RL_LR": "3e-4",
    "MINT_RL_MAX_TOKENS": "8",
    "MINT_RL_EVAL_EVERY": "5",
    "MINT_RL_HOLDOUT_FRACTION": "0.2",
    "MINT_RL_HOLDOUT_SIZE": "24",
    "MINT_RL_MEASURE_ENTROPY": "true",
}
MOST_BYTES = 500_000
LEFT_OUT = ("pid", "host")


def main() -> None:
    """Run the demo, or take in the run directory that the command line names."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / TARGET.name
        if len(sys.argv) < 2:
            environment = {**os.environ, **SETTINGS, "MINT_RL_RUN_DIR": str(run)}
            script = ROOT / "demos/rl/adapters/verifiable_math.py"
            subprocess.run([sys.executable, str(script)], env=environment, check=True, cwd=folder)
        take_in(run)


def take_in(run: Path) -> None:
    """Copy a run directory to where the demo is, in as few bytes as it takes."""
    shutil.rmtree(TARGET, ignore_errors=True)
    (TARGET / "rollouts").mkdir(parents=True)
    files = open_run(run).rollout_files()
    table = pa.concat_tables([pq.read_table(file.path) for file in files])
    name = f"{files[0].first:06d}-{files[-1].last:06d}.parquet"
    pq.write_table(table, TARGET / "rollouts" / name, compression="zstd", compression_level=19)
    summary = {**open_run(run).summary(), "name": TARGET.name}
    summary = {key: value for key, value in summary.items() if key not in LEFT_OUT}
    (TARGET / "summary.json").write_text(json.dumps(summary))
    for each in ("metrics.jsonl", "events.jsonl"):
        shutil.copy(run / each, TARGET / each)
    lines = (run / "config.yaml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("run_dir:")]
    (TARGET / "config.yaml").write_text("".join(kept))
    size = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise SystemExit(f"{TARGET} has {size} bytes, more than {MOST_BYTES}. Record fewer steps.")
    print(f"Wrote {TARGET}: {size} bytes.")


if __name__ == "__main__":
    main()
