"""The ``mint bench`` command and its report."""

from typing import Annotated

import typer

from mint.commands.shared.output import JsonOption, Mistake, print_fields, print_json, print_table

from .measure import MOST_ANSWERS, measure
from .recommend import BenchReport, recommend


def bench(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Base model. Default: the first available.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="A running service. Default: MINT_BASE_URL, or an embedded one."),
    ] = None,
    answers: Annotated[
        str, typer.Option(help="Numbers of concurrent answers to compare.")
    ] = "1,8,48",
    tokens: Annotated[int, typer.Option(min=2, help="Length of an answer.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of a prompt.")] = 64,
    rank: Annotated[int, typer.Option(min=1, help="LoRA rank.")] = 16,
    matmul_size: Annotated[int | None, typer.Option(min=1, hidden=True)] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a model samples and trains here, and recommend settings.

    It takes about a minute. Precision and memory are those of the service: `MINT_PRECISION=exact
    mint bench` measures another precision.
    """
    counts = parse_counts(answers)
    report = measure(model, url, counts, tokens, prompt_tokens, rank, matmul_size)
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report)


def parse_counts(text: str) -> list[int]:
    """Parse increasing numbers of answers.

    >>> parse_counts("1,8, 48")
    [1, 8, 48]
    """
    parts = [part.strip() for part in text.split(",")]
    counts = [int(part) for part in parts if part.isdecimal()]
    if len(counts) < len(parts) or counts[0] < 1 or sorted(set(counts)) != counts:
        raise Mistake(f"--answers {text}: write increasing numbers, such as 1,8,48")
    if counts[-1] > MOST_ANSWERS:
        raise Mistake(f"--answers {text}: {MOST_ANSWERS} is the maximum")
    return counts


def print_report(report: BenchReport) -> None:
    """Print the machine, the speeds and the recommendation."""
    fields = {"model": report.model, "service": report.service}
    if report.precision:
        fields["precision"] = f"{report.precision} ({report.reason})"
    print_fields(fields | describe_machine(report))
    shape = f"{report.prompt_tokens}-token prompts, {report.answer_tokens} new tokens"
    typer.echo()
    speeds = [
        (f"{s.answers} concurrently", f"{s.tokens_per_second:,.0f} tok/s", f"{s.seconds:.2f} s")
        for s in report.sampling
    ]
    print_table([f"SAMPLING, {shape}", "RATE", "TIME"], speeds)
    step, trained = report.training.step, report.training.tokens_per_second
    parts = [
        ("new weights to the sampler", step.handoff, ""),
        ("sampling", step.sample, ""),
        ("training", step.train, f"{trained:,.0f} tok/s forward and backward, prompts included"),
        ("total", step.total, ""),
    ]
    typer.echo()
    rows = [(name, f"{seconds:.2f} s", rate) for name, seconds, rate in parts]
    print_table([f"A GRPO STEP, {report.training.answers} answers", "TIME", "RATE"], rows)
    typer.echo()
    print_recommendation(report)


def describe_machine(report: BenchReport) -> dict[str, str]:
    """Return the machine's limits, and the share of them that sampling reached."""
    if report.ceilings is None:
        return {"machine": "not measured: the service may be on another one"}
    rates = report.ceilings["matmul"].items()
    threads = f"CPU, {report.ceilings['threads']} threads"
    fields = {
        "machine": threads if report.ceilings["device"] == "cpu" else report.ceilings["device"],
        "matmul": ", ".join(f"{rate / 1e9:,.0f} GFLOP/s {name}" for name, rate in rates),
        "memory": f"{report.ceilings['copy'] / 1e9:,.0f} GB/s read and written",
    }
    if (share := report.matmul_share) is not None:
        fields["reached"] = f"{share:.1%} of the matmul rate, by the fastest sampling"
    return fields


def print_recommendation(report: BenchReport) -> None:
    """Print settings, the reasons, and what the figures depend on."""
    advice = recommend(report)
    rows = advice.batch_size * advice.group_size
    rate = f"about {advice.step_seconds:.1f} s a step, {advice.steps_per_minute:.1f} a minute"
    typer.echo("Recommended settings:")
    print_fields(
        {
            f"batch_size={advice.batch_size} group_size={advice.group_size}": f"{rows} answers",
            f"precision={advice.precision}": "in the service's configuration",
            "time": f"{rate}, with max_tokens={report.answer_tokens}",
            f"max_tokens={advice.max_tokens}": "the longest answers for one step a minute",
        }
    )
    typer.echo()
    for reason in advice.because:
        typer.echo(reason)
    typer.echo(
        "These figures come from one minute of measurement. Other load on the machine, other "
        "prompts and longer answers change them."
    )
