"""``mint rewards list | test | audit``, and ``mint report``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mint.commands.shared.output import Mistake, print_json, print_table
from mint.rewards.analysis import analyse
from mint.rewards.audit import audit_reward
from mint.rewards.registry import RewardNotFound, find_reward, list_rewards
from mint.rewards.reward import Reward
from mint.rewards.score import Sample
from mint.rewards.scoring import Scored, Scorer
from mint.rewards.signature import SignatureError
from mint.watch import open_run

app = typer.Typer(help="List, test and audit reward functions.", no_args_is_help=True)

_RewardName = Annotated[
    str, typer.Option("--reward", "-r", help="A name, a dotted path, or path/to/file.py:function.")
]
_Samples = Annotated[
    Path, typer.Argument(help="A JSON Lines file; each line has response, prompt and answer.")
]
_SHOWN_ROWS = 20


@app.command("list")
def list_command() -> None:
    """List the built-in rewards with their ranges."""
    rows = ((listed.name, listed.range, listed.summary) for listed in list_rewards())
    print_table(["NAME", "RANGE", "WHAT IT DOES"], rows)


@app.command("test")
def try_command(
    samples: _Samples,
    reward: _RewardName,
    rows: Annotated[int, typer.Option(help="Number of samples to show.")] = _SHOWN_ROWS,
    plot: Annotated[Path | None, typer.Option(help="Write the histogram as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON.")] = False,
) -> None:
    """Score a file of samples with a reward: a table, statistics and a histogram."""
    scorer = Scorer(_find_reward(reward), max_failure_share=1.0, on_failure=lambda *_: None)
    scored = scorer.score(_read_samples(samples))
    analysis = analyse(scored)
    if plot is not None:
        analysis.plot(plot)
    if as_json:
        print_json(analysis.as_data())
        return
    _print_scored(scored[:rows])
    if len(scored) > rows:
        typer.echo(f"... and {len(scored) - rows} more; --rows shows more of them")
    typer.echo(analysis.as_text())
    if scorer.failures:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(samples: _Samples, reward: _RewardName) -> None:
    """Score degenerate answers with a reward, and report which of them it rewards."""
    findings = audit_reward(_find_reward(reward), _read_samples(samples))
    rows = (
        (p.probe, p.finding, _figure(p.highest), _figure(p.honest), p.error or repr(p.example[:50]))
        for p in findings
    )
    print_table(
        ["PROBE", "FINDING", "REWARD", "RIGHT ANSWER", "EXAMPLE"], rows, "Nothing was probed."
    )
    bad = [probed for probed in findings if probed.finding in ("hackable", "raises")]
    if not bad:
        typer.echo("No probe was rewarded like a right answer.")
        return
    names = ", ".join(probed.probe for probed in bad)
    typer.echo(f"{len(bad)} probes succeed: {names}. Gate the reward with a format, or tighten it.")
    raise typer.Exit(1)


def report(
    run_dir: Annotated[Path, typer.Argument(help="A run directory, such as runs/math-1a2b3c4d.")],
) -> None:
    """Write a report on a run's rewards: Markdown, HTML with plots, JSON and text."""
    from mint.rl.recording.report import write_report

    run = open_run(run_dir)
    written = write_report(run.path)
    if not written:
        raise Mistake(f"{run_dir} has no rollouts yet. Wait until the first step is done.")
    verdict = run.summary().get("verdict") or {}
    print(f"{verdict.get('verdict')}: {verdict.get('evidence')} {verdict.get('advice')}")
    for path in written:
        print(f"  {path}")


def _find_reward(name: str) -> Reward:
    try:
        return find_reward(name)
    except (RewardNotFound, SignatureError) as error:
        raise typer.BadParameter(str(error)) from None


def _read_samples(path: Path) -> list[Sample]:
    if not path.is_file():
        raise typer.BadParameter(f"There is no file {path}.")
    samples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row: dict[str, Any] = json.loads(line)
            response = str(row.pop("response", row.pop("completion", "")))
            metadata = {**row.pop("metadata", {}), **row}
        except (ValueError, AttributeError, TypeError):
            raise typer.BadParameter(
                f"{path}:{number} is not a JSON object with a 'response'."
            ) from None
        samples.append(Sample(response, str(metadata.pop("prompt", "")), metadata))
    return samples


def _print_scored(scored: list[Scored]) -> None:
    names = sorted({name for one in scored if one.score for name in one.score.components})
    rows = []
    for one in scored:
        components = one.score.components if one.score else {}
        total = f"{one.score.total:.3f}" if one.score else (one.error or "does not apply")[:60]
        values = [_figure(components.get(name)) for name in names]
        gold = str("" if one.sample.gold is None else one.sample.gold)[:20]
        rows.append([total, *values, repr(one.sample.response[-60:]), gold])
    columns = ["REWARD", *(name.upper() for name in names), "RESPONSE", "ANSWER"]
    print_table(columns, rows, "The file has no samples.")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
