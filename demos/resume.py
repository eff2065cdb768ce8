"""Resume after an interruption: a training script is killed, and run again.

    python demos/resume.py

The script is demos/rl/adapters/verifiable_math.py, and it has no code for resuming: `run_grpo`
keeps a run directory and checkpoints, and the same command resumes from them. It runs three times:
  - to the end, for comparison;
  - until it has reported MINT_RESUME_KILL_AFTER steps, when it is killed (by SIGKILL, so it cannot
    save anything). Without MINT_BASE_URL its service dies with it;
  - again, with the same command.
The interrupted run has the steps, prompts, answers and metrics of the uninterrupted one, up
to rounding: answers are computed in batches as requests arrive, which changes the last bits of a
logprob and, occasionally, a sampled token. Two uninterrupted runs differ in the same way.

Settings are environment variables: those of the script (docs/rl.md), with these defaults:

    MINT_RL_STEPS              6
    MINT_RL_CHECKPOINT_EVERY   2
    MINT_RESUME_KILL_AFTER     3
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import METRICS, read_rows

SCRIPT = Path(__file__).parent / "rl" / "adapters" / "verifiable_math.py"
DEFAULTS = {"MINT_RL_STEPS": "6", "MINT_RL_CHECKPOINT_EVERY": "2"}
KILL_AFTER = int(os.environ.get("MINT_RESUME_KILL_AFTER", "3"))


def train(run_dir: Path, kill_after: int | None = None) -> None:
    """Run the script; with ``kill_after``, kill it when it has reported that step."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        env={**DEFAULTS, **os.environ, "MINT_RL_RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(f"  {line}", end="", flush=True)
        if line.startswith(f"Step {kill_after}/"):
            process.kill()
            print("  killed", flush=True)
    if process.wait() != 0 and kill_after is None:
        sys.exit(f"{SCRIPT} failed; its message is above.")


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step, except times."""
    rows = read_rows(run_dir / METRICS)
    return [{k: v for k, v in row.items() if k.partition("/")[0] != "time"} for row in rows]


def largest_difference(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> float:
    pairs = ((row[k], other[k]) for row, other in zip(first, second, strict=True) for k in row)
    return max(abs(a - b) for a, b in pairs)


def main() -> None:
    Path("runs").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="resume-", dir="runs"))
    whole, broken = folder / "whole", folder / "broken"
    print("Without an interruption:")
    train(whole)
    print(f"Killed after step {KILL_AFTER}:")
    train(broken, KILL_AFTER)
    print("The same command again:")
    train(broken)

    expected, found = metrics(whole), metrics(broken)
    steps = [row["step"] for row in found]
    print(f"Steps in {broken / METRICS}: {steps}")
    if steps != [row["step"] for row in expected]:
        sys.exit("The interrupted run has a gap or a repeat.")
    print(f"Largest difference of any metric: {largest_difference(expected, found):.6f}")
    for what in ("prompt", "response"):
        pairs = zip(open_run(whole).rollouts(), open_run(broken).rollouts(), strict=True)
        same = [first[what] == second[what] for first, second in pairs]
        print(f"Rollouts with the same {what}: {sum(same)} of {len(same)}")


if __name__ == "__main__":
    main()
