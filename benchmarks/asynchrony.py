"""Whether sampling ahead is faster per unit of reward: python -m benchmarks.asynchrony

A random byte model is paid for bytes below 128. How long an answer is, its task says: mostly 8 to
24 tokens, and 160 for one task in six. Runs that differ in nothing but ``max_staleness`` take turns
on one service, and rounds go back and forth, so that a machine that becomes slower is slower for
all. The first step, in which the engine warms up, is left out, and so is the last, while which
nothing is sampled ahead.

With ``--shape 0.6b`` the random byte model has the layers of Qwen3-0.6B, for a GPU.
With ``--judge SECONDS`` each answer is scored after that time, as by a judge on another machine.
Without a shape, the task is then another one: SmolLM2-135M is asked to add numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.shapes import SHAPES, SPREAD
from mint.rl import Chat, RLConfig, Run, grpo, run_loop
from mint.watch.directory.recorder import METRICS, read_rows
from tests.tiny import build_model

MODEL = {"max_position_embeddings": 512}
SMOOTH = 3  # steps over which the reward is averaged before it is compared with the goal
LONG, LONG_SHARE = 160, 1 / 6
JUDGED_MODEL, JUDGED_TOKENS = "HuggingFaceTB/SmolLM2-135M-Instruct", 16


@dataclass(frozen=True)
class Uneven:
    """Pays for bytes below 128: half of what a random byte model writes."""

    seconds: float = 0.0

    def build_dataset(self) -> list[tuple[int, int]]:
        return [(random.randint(0, 999), self._length()) for _ in range(64)]

    def _length(self) -> int:
        return LONG if random.random() < LONG_SHARE else random.randint(8, 24)

    async def rollout(self, task: tuple[int, int], chat: Chat) -> float:
        chat.user(f"{task[0]}")
        text = (await chat.reply(max_tokens=task[1])).text
        await asyncio.sleep(self.seconds)
        return sum(character < "\x80" for character in text) / max(1, len(text))


@dataclass(frozen=True)
class Judged:
    """Additions; the share of digits in an answer is its reward, known after some seconds."""

    seconds: float

    def build_dataset(self) -> list[tuple[int, int]]:
        return [(random.randint(10, 99), random.randint(10, 99)) for _ in range(64)]

    async def rollout(self, task: tuple[int, int], chat: Chat) -> float:
        chat.user(f"What is {task[0]} + {task[1]}? Answer with the number alone.")
        text = (await chat.reply(max_tokens=JUDGED_TOKENS)).text
        await asyncio.sleep(self.seconds)
        return sum(character.isdigit() for character in text) / max(1, len(text))


@dataclass(frozen=True)
class Measured:
    """One run: when each step ended, what it was paid, and how old its answers were."""

    max_staleness: int
    ended: list[float]  # seconds since the end of the first step
    rewards: list[float]
    staleness: float
    dropped: int
    length: float
    longest: int
    load: float

    @property
    def seconds_per_step(self) -> float:
        return self.ended[-1] / len(self.ended)

    @property
    def reward_per_second(self) -> float:
        """Mean reward of a step over the seconds of a step."""
        return statistics.fmean(self.rewards) / self.seconds_per_step

    def reached(self, goal: float) -> int | None:
        """The step at which the reward, averaged over some steps, reached a goal."""
        for index in range(SMOOTH, len(self.rewards) + 1):
            if statistics.fmean(self.rewards[index - SMOOTH : index]) >= goal:
                return index
        return None

    def seconds_to(self, goal: float) -> float | None:
        """When it did."""
        reached = self.reached(goal)
        return None if reached is None else self.ended[reached - 1]


def build_random(folder: Path, shape: str | None) -> Path:
    """Write a random byte model: a tiny one, or one with the layers of a shape."""
    if shape is None:
        return build_model(folder / "llama", **MODEL)
    config = {k: v for k, v in SHAPES[shape].config.items() if k != "vocab_size"}
    return build_model(folder / "qwen3", "qwen3", SPREAD, **config)


def _is_addition(args: argparse.Namespace) -> bool:
    return args.judge is not None and args.shape is None


def measure(model: str, max_staleness: int, args: argparse.Namespace) -> Measured:
    """Train once, from the same start with the same prompts."""
    is_addition = _is_addition(args)
    task = Judged(args.judge) if is_addition else Uneven(args.judge or 0.0)
    with tempfile.TemporaryDirectory() as folder:
        cfg = RLConfig(
            base_model=model,
            run_dir=f"{folder}/run",
            steps=args.steps + 2,
            batch_size=args.prompts,
            group_size=args.group,
            max_tokens=JUDGED_TOKENS if is_addition else LONG,
            temperature=1.0,
            learning_rate=args.learning_rate,
            aggregation="token",
            max_staleness=max_staleness,
            staleness_rule=args.rule,
            truncated_importance=2.0,
            checkpoint_every=10_000,
            truncation_limit=1.0,
        )
        ended: list[float] = []

        async def timed(run: Run) -> None:
            run.monitors.append(lambda batch: ended.append(time.perf_counter()))
            await grpo(run)

        run_loop(timed, task, cfg)
        first, *rows, _ = read_rows(Path(folder, "run", METRICS))
    return Measured(
        max_staleness,
        [seconds - ended[0] for seconds in ended[1:-1]],
        [row["reward/mean"] for row in rows],
        statistics.fmean(row["staleness/mean"] for row in rows),
        int(sum(row["staleness/dropped"] for row in rows)),
        first["length/mean"],
        int(first["length/max"]),
        os.getloadavg()[0],
    )


def table(found: Sequence[Measured], goal: float) -> str:
    """The medians of all rounds, with the lowest and the highest, in Markdown."""
    lines = [
        f"| `max_staleness` | s per step | reward per second | steps to a reward of {goal:g} | "
        "seconds to it | `staleness/mean` | dropped |",
        "|---|---|---|---|---|---|---|",
    ]
    for bound in sorted({each.max_staleness for each in found}):
        runs = [each for each in found if each.max_staleness == bound]
        steps = [run.reached(goal) for run in runs]
        cells = [
            _spread([run.seconds_per_step for run in runs], 2),
            _spread([run.reward_per_second for run in runs], 2),
            _spread([float(each) for each in steps if each is not None], 0),
            _spread([s for run in runs if (s := run.seconds_to(goal)) is not None], 1),
            f"{statistics.median(run.staleness for run in runs):.2f}",
            f"{statistics.median(run.dropped for run in runs):.0f}",
        ]
        lines.append(f"| {bound} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "not reached"
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    """Measure, print a table, and keep every run in a file of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--rule", choices=("drop", "correct"), default="drop")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", action="store_true", help="a round ahead that is not counted")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--shape", choices=list(SHAPES), help="of the model, for a GPU")
    parser.add_argument("--judge", type=float, metavar="SECONDS")
    parser.add_argument("--goal", type=float, default=0.7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/asynchrony"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINT_HOME"] = f"{folder}/home"
        model = JUDGED_MODEL
        if not _is_addition(args):
            model = str(build_random(Path(folder, "model"), args.shape))
        if args.warm_up:  # a GPU's engine compiles and records in it
            for bound in args.staleness:
                measure(model, bound, args)
        for round_ in range(args.rounds):
            for bound in args.staleness if round_ % 2 == 0 else args.staleness[::-1]:
                found.append(measure(model, bound, args))
                rows = json.dumps([asdict(each) for each in found])
                name = args.rule if args.judge is None else "judged"
                name += f"-{args.shape}" if args.shape else ""
                (args.out / f"{name}.json").write_text(rows + "\n")
    print(table(found, args.goal))


if __name__ == "__main__":
    main()
