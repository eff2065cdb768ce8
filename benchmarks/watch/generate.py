"""Write a made-up run directory in the format of a real one.

    python -m benchmarks.watch.generate runs/big --steps 10000 --groups 10 --answers 10

Model-like numbers: additions that are learned over the steps, some groups that are all right or all
wrong, some truncated answers, some rewards that fail, some conversations with a tool.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from mint.watch.directory.files import block_file, step_file
from mint.watch.directory.reader import open_run
from mint.watch.directory.schema import build_table
from mint.watch.verdict.verdict import judge

MERGED = 100
"""Steps of one merged file."""
_STARTED = 1_760_000_000.0
_SECONDS = 6.0


def generate(
    path: Path,
    steps: int = 40,
    groups: int = 8,
    answers: int = 8,
    seed: int = 0,
    status: str = "finished",
    planned: int | None = None,
    extra: list[dict[str, Any]] | None = None,
) -> Path:
    """Write a run of some steps; ``extra`` are rollouts (as rows) added to the last step."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "rollouts").mkdir(exist_ok=True)
    config = {
        "task": "addition",
        "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "steps": planned or steps,
        "batch_size": groups,
        "group_size": answers,
        "learning_rate": 2e-4 * (1 + seed),
        "max_tokens": 32,
        "seed": seed,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (path / "events.jsonl").write_text("")
    (path / "metrics.jsonl").write_text("")
    pending: list[dict[str, Any]] = []
    first = 1
    for step in range(1, steps + 1):
        rows = list(rollouts(step, steps, groups, answers, seed))
        if step == steps and extra:
            rows += [{**rows[0], "group": groups, "index": i, **row} for i, row in enumerate(extra)]
        write_step(path, step, steps, rows)
        pending += rows
        merge = steps > MERGED and (step % MERGED == MERGED - 1 or step == steps)
        if merge:
            _write(block_file(path, first - first % MERGED), pending)
            pending, first = [], step + 1
        elif steps <= MERGED:
            _write(step_file(path, step), rows)
            pending = []
    write_summary(path, steps, planned or steps, status)
    return path


def append(path: Path, step: int, steps: int, groups: int = 8, answers: int = 8) -> None:
    """Add one step to a run, as training does."""
    rows = list(rollouts(step, steps, groups, answers, 0))
    _write(step_file(path, step), rows)
    write_step(path, step, steps, rows)
    write_summary(path, step, steps, "running" if step < steps else "finished")


def rollouts(
    step: int, steps: int, groups: int, answers: int, seed: int
) -> Iterator[dict[str, Any]]:
    """The rollouts of a step, better from step to step."""
    rng = random.Random(seed * 1_000_003 + step)
    skill = 0.05 + 0.8 * (1 - math.exp(-3 * step / steps))
    for group in range(groups):
        problem = random.Random(rng.randrange(200))
        a, b = problem.randrange(100), problem.randrange(100)
        ease = problem.random()
        chance = 1.0 if ease > 1.25 - skill else (0.0 if ease < 0.1 else skill)
        rows = [_rollout(rng, step, group, i, a, b, chance) for i in range(answers)]
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        for row in rows:
            row["advantage"] = None if row["reward"] is None else row["reward"] - mean
            _add_segment(rng, row)
        yield from rows


def _rollout(
    rng: random.Random, step: int, group: int, index: int, a: int, b: int, chance: float
) -> dict[str, Any]:
    question = f"What is {a} + {b}?"
    right = rng.random() < chance
    answer = a + b if right else a + b + rng.choice([-10, -1, 1, 2, 10])
    response = f"{a} + {b} = {answer}"
    truncated = rng.random() < 0.04
    if truncated:
        response += ". To check this, I take the first number and then" + " the next" * 4
    failed = rng.random() < 0.002
    close = max(0.0, 1 - abs(answer - a - b) / 10)
    components = {"exact": float(right), "close": 0.5 * close}
    tools = group % 8 == 7
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer with the sum."},
        {"role": "user", "content": question},
    ]
    if tools:
        call = {"name": "calculator", "arguments": {"expression": f"{a}+{b}"}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "calculator", "content": str(answer)},
            {"role": "assistant", "content": response},
        ]
    reason = f"{answer} is{'' if right else ' not'} {a + b}"
    return {
        "step": step,
        "group": group,
        "index": index,
        "identity": f"add-{a}-{b}",
        "prompt": question,
        "messages": messages if tools or group % 2 else None,
        "response": response,
        "reward": None if failed else round(0.5 * components["exact"] + components["close"], 4),
        "components": {} if failed else components,
        "reasons": {} if failed else {"exact": reason, "close": f"off by {abs(answer - a - b)}"},
        "penalty": 0.0,
        "length": 0,
        "truncated": truncated,
        "stop": "length" if truncated else "stop",
        "masked": False,
        "error": "ValueError: the answer has no number" if failed else None,
        "traceback": "Traceback (most recent call last):\n  …\nValueError" if failed else None,
        "trace": [{"tool": "calculator", "seconds": 0.01}] if tools else None,
        "version": step - 1,
        "replaced": False,
        "sampled_at": _STARTED + step * _SECONDS,
    }


def _add_segment(rng: random.Random, row: dict[str, Any]) -> None:
    given = _pieces(f"<user>{row['prompt']}<assistant>")
    said = _pieces(row["response"])
    sampler = [-rng.expovariate(2.5) for _ in said]
    blank = [None] * len(given)
    row["length"] = len(said)
    row["segments"] = [
        {
            "tokens": [sum(p.encode()) % 49152 for p in [*given, *said]],
            "pieces": [*given, *said],
            "mask": [False] * len(given) + [True] * len(said),
            "sampler": blank + sampler,
            "trainer": blank + [x + rng.gauss(0, 0.01) for x in sampler],
            "advantages": blank + [row["advantage"] or 0.0] * len(said),
            "entropy": blank + [abs(x) * 1.2 for x in sampler],
        }
    ]


def _pieces(text: str) -> list[str]:
    found, word = [], ""
    for letter in text:
        if letter in " ?=.<>" and word:
            found.append(word)
            word = ""
        word += letter
    return [*found, word] if word else found


def write_step(path: Path, step: int, steps: int, rows: list[dict[str, Any]]) -> None:
    """Add a step's numbers and events."""
    rng = random.Random(step)
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    by_group: dict[int, list[float]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row["reward"] or 0.0)
    signal = sum(len(set(found)) > 1 for found in by_group.values())
    right = sum(len(set(found)) == 1 and found[0] >= 1 for found in by_group.values())
    progress = step / steps
    numbers: dict[str, Any] = {
        "step": step,
        "time": _STARTED + step * _SECONDS,
        "rollouts": len(rows),
        "reward/mean": sum(rewards) / len(rewards) if rewards else 0.0,
        "reward/success": sum(r >= 1 for r in rewards) / max(1, len(rewards)),
        "reward/failures": sum(row["error"] is not None for row in rows),
        "component/exact": sum(row["components"].get("exact", 0) for row in rows) / len(rows),
        "component/close": sum(row["components"].get("close", 0) for row in rows) / len(rows),
        "groups": len(by_group),
        "groups/signal": signal,
        "groups/all_right": right,
        "groups/all_wrong": len(by_group) - signal - right,
        "groups/unscored": 0,
        "length/mean": sum(row["length"] for row in rows) / len(rows),
        "length/max": max(row["length"] for row in rows),
        "length/truncated": sum(row["truncated"] for row in rows) / len(rows),
        "policy/entropy": 1.4 * math.exp(-1.2 * progress) + rng.gauss(0, 0.03),
        "policy/repetition": abs(rng.gauss(0.02, 0.01)),
        "staleness/max": 0,
        "policy/temperature": 1.0,
        "kl/k3": 0.15 * progress + abs(rng.gauss(0, 0.01)),
        "mismatch/mean": abs(rng.gauss(0.004, 0.001)),
        "train/entropy": 1.3 * math.exp(-1.2 * progress),
        "train/clipped": abs(rng.gauss(0.05, 0.02)),
        "train/grad_norm": abs(rng.gauss(0.8 - 0.4 * progress, 0.1)),
        "train/learning_rate": 2e-4 * (1 - progress * 0.9),
        "train/loss": rng.gauss(0, 0.1),
        "train/tokens": sum(row["length"] for row in rows),
        "datums": len(rows),
        "time/sample": abs(rng.gauss(3.5, 0.3)),
        "time/train": abs(rng.gauss(2.2, 0.2)),
        "time/total": step * _SECONDS,
    }
    every = max(1, steps // 8)
    events = []
    if step % every == 0 or step == steps:
        held = min(1.0, max(0.0, numbers["reward/success"] - 0.05))
        measured = {
            "holdout/reward": held + 0.1,
            "holdout/pass@1": held,
            "holdout/pass@1_low": max(0.0, held - 0.09),
            "holdout/pass@1_high": min(1.0, held + 0.09),
        }
        numbers |= measured
        events.append({"event": "evaluation", "step": step, **measured})
        events.append({"event": "checkpoint", "step": step, "path": f"tinker://run/w/step-{step}"})
    if step == max(2, steps // 3):
        text = "truncation: 12% of the answers were cut off (max_tokens=32). Raise max_tokens."
        events.append({"event": "finding", "step": step, "name": "truncation", "text": text})
    if step == steps:
        events.append({"event": "finished", "step": step, "path": "tinker://run/final"})
    _append(path / "metrics.jsonl", [numbers])
    _append(path / "events.jsonl", [{"time": numbers["time"], **event} for event in events])


def write_summary(path: Path, step: int, steps: int, status: str) -> None:
    """Write where the run stands."""
    run = open_run(path)
    rows, events = run.metrics(), run.events()
    summary = {
        "format": 2,
        "task": "addition",
        "name": path.name,
        "status": status,
        "step": step,
        "steps": steps,
        "started": _STARTED,
        "updated": _STARTED + step * _SECONDS,
        "verdict": judge(rows, events, status).as_dict(),
        "last": rows[-1],
    }
    new = path / ".summary.json.new"
    new.write_text(json.dumps(summary))
    new.replace(path / "summary.json")


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    table = build_table(rows)
    new = file.with_name(f".{file.name}.new")
    pq.write_table(table, new, compression="zstd", row_group_size=2000)
    new.replace(file)


def main() -> None:
    """Write the run that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generate(options.path, options.steps, options.groups, options.answers, options.seed)
    print(f"Wrote {options.path}: {options.steps} steps.")


if __name__ == "__main__":
    main()
