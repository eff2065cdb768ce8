"""Measure a machine and a model on it, through a service, in about a minute."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mint.commands.shared.options import load_catalog
from mint.commands.shared.output import Mistake, say
from mint.embedded import embedded_service, named_url

from . import ceilings
from .recommend import GROUP, GROWTH, BenchReport, SamplingSpeed, TrainingSpeed
from .timed_run import TimedRun, write_questions

if TYPE_CHECKING:
    import mint

MOST_ANSWERS = 512
STEP_ANSWERS = 48
SAMPLING_S = 40.0  # after which no larger batch is tried
SINGLE_ANSWER_S = 4.0  # how long one answer of a slow model may take
ROUND_S = 4.0  # a measurement is repeated while all of its rounds are shorter, three times at most
_PLAN = re.compile(r"precision (exact|half|bfloat16) \(([^\n]*?)\), [\d,]+ KV tokens")


def measure(
    model: str | None,
    url: str | None,
    answers: Sequence[int],
    tokens: int,
    prompt_tokens: int,
    rank: int,
    matmul_size: int | None,
) -> BenchReport:
    """Measure the machine, unless the service may be on another one, and then the model."""
    import mint

    remote = named_url(url)
    machine, log, context = None, None, None
    if not remote:
        model, folder = locate(model)
        config = json.loads((folder / "config.json").read_text())
        context = config.get("max_position_embeddings")
        say("Measuring the machine's matmul rate and memory bandwidth.")
        machine = measure_ceilings(config, matmul_size)
        log = embedded_service().log
    service = mint.ServiceClient(base_url=remote)
    model = model or first_model(service)
    say(f"Loading {model}.")
    client = service.create_lora_training_client(
        model, rank=rank, train_unembed=False, user_metadata={"purpose": "mint bench"}
    )
    tokenizer = client.get_tokenizer()
    texts = write_questions(MOST_ANSWERS // GROUP)
    run = TimedRun(client, [tokenizer.encode(text)[:prompt_tokens] for text in texts])
    tokens = affordable_tokens(run, tokens)
    precision, reason = read_plan(log.read_text(errors="replace")) if log else (None, None)
    say("Running a GRPO step.")
    training = measure_training(run, min(STEP_ANSWERS, answers[-1]), tokens)
    say(f"Sampling {', '.join(map(str, answers))} answers at once.")
    return BenchReport(
        model=model,
        service=remote or "embedded",
        precision=precision,
        reason=reason,
        prompt_tokens=len(run.prompts_P[0]),
        answer_tokens=tokens,
        context_length=context,
        ceilings=machine,
        sampling=measure_sampling(run, answers, tokens),
        training=training,
    )


def affordable_tokens(run: TimedRun, tokens: int) -> int:
    """Return how many tokens a slow model samples in a few seconds, at most ``tokens``."""
    run.handoff()
    run.sample(1, 1, 2)
    few = min(8, tokens)
    _, seconds = run.sample(1, 1, few)
    return max(few, min(tokens, int(SINGLE_ANSWER_S * few / seconds)))


def measure_training(run: TimedRun, answers: int, tokens: int) -> TrainingSpeed:
    """Time a GRPO step after a warm-up step, then forward and backward alone."""
    prompts, group = split(answers)
    run.step(prompts, group, tokens)
    step = run.step(prompts, group, tokens)
    groups_P, _ = run.sample(prompts, group, tokens)
    data = run.datums(groups_P)
    seconds = run.forward_backward(data)
    run.optim_step()
    count = sum(datum.model_input.length for datum in data)
    return TrainingSpeed(prompts * group, step, count / seconds)


def measure_sampling(run: TimedRun, counts: Sequence[int], tokens: int) -> list[SamplingSpeed]:
    """Sample each number of answers, then double it while throughput grows and time is left."""
    deadline = time.monotonic() + SAMPLING_S
    speeds = [_measure_answers(run, answers, tokens) for answers in counts]
    while len(speeds) > 1 and speeds[-1].answers * 2 <= MOST_ANSWERS:
        grows = speeds[-1].tokens_per_second > GROWTH * speeds[-2].tokens_per_second
        if not grows or time.monotonic() + 3 * speeds[-1].seconds > deadline:
            break
        speeds.append(_measure_answers(run, speeds[-1].answers * 2, tokens))
    return speeds


def _measure_answers(run: TimedRun, answers: int, tokens: int) -> SamplingSpeed:
    """Take the median of a few rounds, each with a new sampler without cached prompts."""
    prompts, group = split(answers)
    run.handoff()
    run.sample(prompts, group, 2)  # lets the engine prepare for this batch size
    times: list[float] = []
    while len(times) < 3 and sum(times) < ROUND_S:
        run.handoff()
        times.append(run.sample(prompts, group, tokens)[1])
    seconds = median(times)
    return SamplingSpeed(answers, seconds, prompts * group * tokens / seconds)


def split(answers: int) -> tuple[int, int]:
    """Return the number of prompts and the group size for about this many answers.

    >>> split(1), split(8), split(48)
    ((1, 1), (1, 8), (6, 8))
    """
    group = min(GROUP, answers)
    return answers // group, group


def measure_ceilings(config: dict[str, Any], size: int | None) -> dict[str, Any]:
    """Measure the machine in a child process, which may load torch."""
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        try:
            return child.submit(ceilings.measure, config, size=size).result()
        except Exception as error:
            raise Mistake(f"The machine's speed could not be measured: {error}") from error


def read_plan(log: str) -> tuple[str | None, str | None]:
    """Return the precision that a service's log says the engine has, and the reason.

    >>> read_plan("x on cpu: precision exact (as asked for), 43,000 KV tokens (2.0 GB), 1,024 …")
    ('exact', 'as asked for')
    """
    found = _PLAN.findall(log)
    return found[-1] if found else (None, None)


def locate(model: str | None) -> tuple[str, Path]:
    """Return the name of a model, by default the first on this machine, and its folder."""
    catalog = load_catalog(None)
    name = model or next(iter(catalog.names()), None)
    if name is None:
        raise Mistake(
            "There is no model on this machine. Name one to download: mint bench --model NAME"
        )
    return name, catalog.locate(name)


def first_model(service: mint.ServiceClient) -> str:
    """Return the first model that a service offers."""
    names = [m.model_name for m in service.get_server_capabilities().supported_models]
    if not names or names[0] is None:
        raise Mistake("Name a model: mint bench --model NAME. The service has no default.")
    return str(names[0])
