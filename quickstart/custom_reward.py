"""Teach a model to add, with a reward that you write yourself in Python.

This is the whole loop: sample answers on the service, score them here, turn the scores into
advantages, train. It is GRPO without what this task does not need: no KL term
(the run is short and starts from a sensible model), no division by the group's standard deviation
(it would favour questions that are almost always or almost never solved), no clipping (every batch
is used for one step, so the policy has not moved away from the one that sampled).

    python quickstart/custom_reward.py

Without MINT_BASE_URL it starts a service on this machine. Settings are environment variables:

    MINT_BASE_MODEL                  Qwen/Qwen3-0.6B   model to train
    MINT_LORA_RANK                   16
    MINT_CUSTOM_REWARD_STEPS         8                 training steps
    MINT_CUSTOM_REWARD_BATCH         8                 questions per step
    MINT_CUSTOM_REWARD_GROUP         6                 answers per question
    MINT_CUSTOM_REWARD_LR            2e-5
    MINT_CUSTOM_REWARD_MAX_TOKENS    16                maximum length of an answer
    MINT_CUSTOM_REWARD_TEMPERATURE   0.8
    MINT_CUSTOM_REWARD_SEED          0                 seed of all random numbers
    MINT_CUSTOM_REWARD_MAX_OPERAND   99                the largest number to add
    MINT_CUSTOM_REWARD_SHOTS         0                 solved examples in the prompt
    MINT_CUSTOM_REWARD_EVAL          0                 held-out questions, before and after
    MINT_CUSTOM_REWARD_CURVE         (off)             file for the reward curve (.svg)

Samples and metrics are recorded in runs/custom-reward; see `mint report runs/custom-reward`.

Names end in their dimensions: P prompts of a step, G answers of a group, T tokens of an answer.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

import mint
import mint.watch
from mint import types
from mint.rewards import RewardBreakdown, compute_reward_breakdown

Setting = TypeVar("Setting", int, float, str)


def setting(name: str, default: Setting) -> Setting:
    """Read an environment variable, converted to the type of its default."""
    text = os.environ.get(name) or str(default)
    try:
        return type(default)(text)
    except ValueError:
        sys.exit(f"{name}={text!r} is not {type(default).__name__}; try {name}={default}")


BASE_MODEL = setting("MINT_BASE_MODEL", "Qwen/Qwen3-0.6B")
LORA_RANK = setting("MINT_LORA_RANK", 16)
STEPS = setting("MINT_CUSTOM_REWARD_STEPS", 8)
BATCH = setting("MINT_CUSTOM_REWARD_BATCH", 8)
GROUP = setting("MINT_CUSTOM_REWARD_GROUP", 6)
RL_LR = setting("MINT_CUSTOM_REWARD_LR", 2e-5)
MAX_TOKENS = setting("MINT_CUSTOM_REWARD_MAX_TOKENS", 16)
TEMPERATURE = setting("MINT_CUSTOM_REWARD_TEMPERATURE", 0.8)
SEED = setting("MINT_CUSTOM_REWARD_SEED", 0)
MAX_OPERAND = setting("MINT_CUSTOM_REWARD_MAX_OPERAND", 99)
SHOTS = setting("MINT_CUSTOM_REWARD_SHOTS", 0)
EVAL = setting("MINT_CUSTOM_REWARD_EVAL", 0)
CURVE = setting("MINT_CUSTOM_REWARD_CURVE", "")

console = Console()
seeds = random.Random(SEED)


# ---- The task: a question and its answer, made from the same two numbers ----


@dataclass(frozen=True)
class Problem:
    """An addition."""

    a: int
    b: int

    @property
    def question(self) -> str:
        return f"Q: What is {self.a} + {self.b}?\nA:"

    @property
    def answer(self) -> int:
        return self.a + self.b

    @property
    def operands(self) -> frozenset[int]:
        """What identifies a problem: 3 + 5 and 5 + 3 are the same."""
        return frozenset((self.a, self.b))


class Problems:
    """Draws problems at random, but none that is held out."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.set_aside: set[frozenset[int]] = set()

    def draw(self) -> Problem:
        """Draw a problem for training."""
        while True:
            problem = Problem(
                self.random.randint(0, MAX_OPERAND), self.random.randint(0, MAX_OPERAND)
            )
            if problem.operands not in self.set_aside:
                return problem

    def hold_out(self, count: int) -> list[Problem]:
        """Draw different problems, which no later draw returns."""
        possible = (MAX_OPERAND + 1) * (MAX_OPERAND + 2) // 2
        if count and len(self.set_aside) + count > possible // 2:
            sys.exit(
                f"There are {possible} different problems, too few to hold out {count} of them; "
                "lower MINT_CUSTOM_REWARD_EVAL or raise MINT_CUSTOM_REWARD_MAX_OPERAND"
            )
        held_out = []
        for _ in range(count):
            held_out.append(self.draw())
            self.set_aside.add(held_out[-1].operands)
        return held_out


# ---- The reward: part of it for a number, more for a close one, the rest for the right one ----
#
# compute_reward_breakdown(response, correct_answer) finds the first integer of a response and adds
#     format_reward     0.2          there is an integer
#     distance_reward   0.0 to 0.5   it is close to the answer
#     exact_bonus       0.3          it is the answer
# It is a plain function of a string and a number. Replace it with your own.

# ---- Sampling: all questions of a step are in flight at once ----


def ask(
    sampling_client: mint.SamplingClient,
    prompts_P: list[list[int]],
    num_samples: int,
    temperature: float,
    label: str,
) -> list[list[types.SampledSequence]]:
    """Sample a group of answers to every prompt, all in flight at once."""
    futures_P = [
        sampling_client.sample(
            prompt=types.ModelInput.from_ints(tokens=prompt_tokens),
            num_samples=num_samples,
            sampling_params=types.SamplingParams(
                max_tokens=MAX_TOKENS,
                temperature=temperature,
                stop=["\n"],
                seed=seeds.getrandbits(31),
            ),
        )
        for prompt_tokens in prompts_P
    ]
    wait_for(futures_P, f"{label}: sampling {len(prompts_P)} x {num_samples} answers")
    return [future.result().sequences for future in futures_P]


def wait_for(futures: list[Future[Any]], label: str) -> None:
    """Show a bar on a terminal, and a line elsewhere, until every future is done."""
    if not console.is_terminal:
        print(label, flush=True)
    for _ in track(
        as_completed(futures), label, len(futures), console=console, transient=True,
        disable=not console.is_terminal,
    ):  # fmt: skip
        pass


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show a label while some work is in progress."""
    if not console.is_terminal:
        print(label, flush=True)
    with console.status(label):
        yield


# ---- Training: answers better than the mean of their group are made more likely ----


def make_datum(
    prompt_tokens: list[int], sequence: types.SampledSequence, advantage: float
) -> types.Datum:
    """Return a datum of one answer: its tokens, their sampling logprobs, and its advantage."""
    tokens_T = list(sequence.tokens)
    logprobs_T = list(sequence.logprobs or [])
    if len(logprobs_T) != len(tokens_T):
        raise RuntimeError(
            f"The service sent {len(logprobs_T)} logprobs for {len(tokens_T)} tokens. Without "
            "them the importance ratio is unknown; use a service that returns logprobs."
        )
    full = prompt_tokens + tokens_T
    prefix = len(prompt_tokens) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens=full[:-1]),
        loss_fn_inputs={
            "target_tokens": full[1:],
            "weights": [0.0] * prefix + [1.0] * len(tokens_T),
            "logprobs": [0.0] * prefix + logprobs_T,
            "advantages": [0.0] * prefix + [advantage] * len(tokens_T),
        },
    )


def make_rollout(
    problem: Problem, answer: str, breakdown: RewardBreakdown, advantage: float
) -> dict[str, Any]:
    """Return one answer as a row of the run directory."""
    return {
        "prompt": problem.question,
        "response": answer,
        "reward": breakdown.total,
        "components": {k: v for k, v in vars(breakdown).items() if k != "total"},
        "advantage": advantage,
    }


# ---- The record: scores, and a plot of them ----


@dataclass(frozen=True)
class Scores:
    """Averages over many answers."""

    avg_reward: float
    exact_rate: float
    format_rate: float

    @classmethod
    def of(cls, breakdowns: list[RewardBreakdown]) -> Scores:
        count = len(breakdowns)
        return cls(
            avg_reward=sum(b.total for b in breakdowns) / count,
            exact_rate=sum(b.exact_bonus > 0 for b in breakdowns) / count,
            format_rate=sum(b.format_reward > 0 for b in breakdowns) / count,
        )

    def __str__(self) -> str:
        return (
            f"avg_reward={self.avg_reward:.3f} exact_rate={self.exact_rate:.1%} "
            f"format_rate={self.format_rate:.1%}"
        )


class Record:
    """Keeps the scores of every step; with MINT_CUSTOM_REWARD_CURVE, writes and plots them."""

    def __init__(self, curve: str) -> None:
        self.curve = Path(curve) if curve else None
        self.rows: list[dict[str, Any]] = []
        if self.curve:
            try:
                import matplotlib  # noqa: F401 - fail now rather than after training
            except ImportError:
                sys.exit("MINT_CUSTOM_REWARD_CURVE needs matplotlib: pip install 'mint[demo]'")
            self.curve.parent.mkdir(parents=True, exist_ok=True)
            self.metrics.unlink(missing_ok=True)

    @property
    def metrics(self) -> Path:
        assert self.curve
        return self.curve.with_name("metrics.jsonl")

    def add(self, kind: str, step: int, scores: Scores, **more: float) -> None:
        """Record the scores of a training step, or of an evaluation after that many steps."""
        self.rows.append({"kind": kind, "step": step, **vars(scores), **more})
        if self.curve:
            with self.metrics.open("a") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")

    def draw(self) -> None:
        """Write the plot."""
        if not self.curve:
            return
        import matplotlib

        matplotlib.use("svg")
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mint"})
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator

        figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
        steps = [row for row in self.rows if row["kind"] == "train"]
        held_out = [row for row in self.rows if row["kind"] == "eval"]
        for key, label, colour in (
            ("avg_reward", "average reward", "#1b7f5c"),
            ("exact_rate", "exact answers", "#5b6ee1"),
        ):
            x = [row["step"] for row in steps]
            axes.plot(x, [row[key] for row in steps], color=colour, label=f"{label}, sampled")
            if held_out:
                x = [row["step"] for row in held_out]
                axes.plot(x, [row[key] for row in held_out], "o", color=colour, markersize=8,
                          label=f"{label}, held out")  # fmt: skip
        axes.set(
            xlabel="step", ylim=(0, 1), title=f"{BASE_MODEL}, {BATCH} x {GROUP} answers a step"
        )
        axes.title.set_fontsize("medium")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
        figure.savefig(self.curve, metadata={"Date": None})
        print(f"Reward curve: {self.curve} (numbers: {self.metrics})")


# ---- The run ----


def main() -> None:
    record = Record(CURVE)
    problems = Problems(SEED)
    shots = problems.hold_out(SHOTS)
    held_out = problems.hold_out(EVAL)
    examples = "".join(f"{shot.question} {shot.answer}\n" for shot in shots)

    service_client = mint.ServiceClient()
    with working(f"Loading {BASE_MODEL}"):
        training_client = service_client.create_lora_training_client(
            base_model=BASE_MODEL,
            rank=LORA_RANK,
            seed=SEED,
            train_mlp=True,
            train_attn=True,
            train_unembed=True,
        )
        tokenizer = training_client.get_tokenizer()

    def encode_prompts(problems_P: list[Problem]) -> list[list[int]]:
        return [tokenizer.encode(examples + problem.question) for problem in problems_P]

    def score(problem: Problem, sequence: types.SampledSequence) -> RewardBreakdown:
        return compute_reward_breakdown(tokenizer.decode(sequence.tokens), problem.answer)

    def evaluate(when: str, step: int, sampling_client: mint.SamplingClient) -> Scores:
        """Evaluate the greedy answers to the held-out questions."""
        groups_P = ask(sampling_client, encode_prompts(held_out), 1, 0.0, f"{when} training")
        scores = Scores.of(
            [score(p, group[0]) for p, group in zip(held_out, groups_P, strict=True)]
        )
        record.add("eval", step, scores)
        print(f"{when} training, {EVAL} held-out problems: {scores}", flush=True)
        return scores

    settings = {
        "base_model": BASE_MODEL,
        "steps": STEPS,
        "learning_rate": RL_LR,
        "max_tokens": MAX_TOKENS,
        "stop": ["\n"],
    }
    recorded = mint.watch.record("runs/custom-reward", config=settings)
    if EVAL:
        start = training_client.save_weights_and_get_sampling_client(name="before")
        evaluate("Before", 0, start)

    for step in range(1, STEPS + 1):
        started = time.monotonic()
        label = f"step {step}/{STEPS}"
        sampling_client = training_client.save_weights_and_get_sampling_client(name=f"step-{step}")

        problems_P = [problems.draw() for _ in range(BATCH)]
        prompts_P = encode_prompts(problems_P)
        groups_P = ask(sampling_client, prompts_P, GROUP, TEMPERATURE, label)

        breakdowns: list[RewardBreakdown] = []
        rollouts: list[dict[str, Any]] = []
        training_datums: list[types.Datum] = []
        for problem, prompt_tokens, sequences_G in zip(
            problems_P, prompts_P, groups_P, strict=True
        ):
            breakdowns_G = [score(problem, sequence) for sequence in sequences_G]
            breakdowns += breakdowns_G
            group_rewards = [breakdown.total for breakdown in breakdowns_G]
            mean_reward = sum(group_rewards) / len(group_rewards)
            advantages = [reward - mean_reward for reward in group_rewards]
            answers_G = [tokenizer.decode(sequence.tokens) for sequence in sequences_G]
            rollouts += [
                make_rollout(problem, answer, breakdown, advantage)
                for answer, breakdown, advantage in zip(
                    answers_G, breakdowns_G, advantages, strict=True
                )
            ]
            if not any(advantages):
                continue  # all answers are equally good: no signal
            training_datums += [
                make_datum(prompt_tokens, sequence, advantage)
                for sequence, advantage in zip(sequences_G, advantages, strict=True)
            ]

        if training_datums:
            with working(f"{label}: training on {len(training_datums)} datums"):
                training_client.forward_backward(
                    training_datums,
                    loss_fn="importance_sampling",
                ).result()
                training_client.optim_step(types.AdamParams(learning_rate=RL_LR)).result()

        scores = Scores.of(breakdowns)
        seconds = time.monotonic() - started
        record.add("train", step, scores, datums=len(training_datums), seconds=round(seconds, 2))
        recorded.step(
            {"reward/success": scores.exact_rate, "datums": len(training_datums)}, rollouts
        )
        print(f"{label} {scores} datums={len(training_datums)} ({seconds:.1f} s)", flush=True)

    if EVAL:
        end = training_client.save_weights_and_get_sampling_client(name="after")
        evaluate("After", STEPS, end)
    record.draw()

    with working("Saving"):
        saved = training_client.save_state(name="custom-reward-final").result()
    recorded.event("checkpoint", path=saved.path)
    recorded.close()
    print(f"Saved: {saved.path}")
    print(f'Sample from it: mint sample -m {recorded.path} "Q: What is 12 + 7? A:"')


if __name__ == "__main__":
    main()
