"""``mint rewards list | test | audit``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mint.rewards.analysis import analyse
from mint.rewards.audit import Probed, audit_reward
from mint.rewards.registry import RewardNotFound, find_reward, list_rewards
from mint.rewards.reward import Reward
from mint.rewards.score import Sample
from mint.rewards.scoring import Scored, Scorer
from mint.rewards.signature import SignatureError

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
    table = Table("name", "range", "what it does", box=None, header_style="bold")
    for listed in list_rewards():
        table.add_row(listed.name, listed.range, listed.summary)
    _console().print(table)


@app.command("test")
def try_command(
    samples: _Samples,
    reward: _RewardName,
    rows: Annotated[int, typer.Option(help="Number of samples to show.")] = _SHOWN_ROWS,
    plot: Annotated[Path | None, typer.Option(help="Write the histogram as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Try a reward on a file of samples: a table, the figures, and a histogram."""
    scorer = Scorer(_found(reward), max_failure_share=1.0, on_failure=lambda *_: None)
    scored = scorer.score(_read(samples))
    analysis = analyse(scored)
    if plot is not None:
        analysis.plot(plot)
    if as_json:
        typer.echo(json.dumps(analysis.as_data(), indent=2))
        return
    _console().print(_table(scored[:rows]))
    if len(scored) > rows:
        typer.echo(f"... and {len(scored) - rows} more; --rows shows more of them")
    typer.echo(analysis.as_text())
    if scorer.failures:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(samples: _Samples, reward: _RewardName) -> None:
    """Probe a reward with degenerate answers and report what can be hacked."""
    findings = audit_reward(_found(reward), _read(samples))
    table = Table("probe", "finding", "paid", "honest", "example", box=None, header_style="bold")
    for probed in findings:
        table.add_row(
            probed.probe,
            probed.finding,
            _figure(probed.highest),
            _figure(probed.honest),
            probed.error or repr(probed.example[:50]),
        )
    _console().print(table)
    bad = [probed for probed in findings if probed.finding in ("hackable", "raises")]
    typer.echo(_verdict(bad))
    if bad:
        raise typer.Exit(1)


def _verdict(bad: list[Probed]) -> str:
    if not bad:
        return "No probe was rewarded like an honest answer."
    names = ", ".join(probed.probe for probed in bad)
    return f"{len(bad)} probes succeed: {names}. Gate the reward with a format, or tighten it."


def _found(name: str) -> Reward:
    try:
        return find_reward(name)
    except (RewardNotFound, SignatureError) as error:
        raise typer.BadParameter(str(error)) from None


def _read(path: Path) -> list[Sample]:
    if not path.is_file():
        raise typer.BadParameter(f"There is no file {path}.")
    return list(_lines(path))


def _lines(path: Path) -> Iterator[Sample]:
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
        yield Sample(response, str(metadata.pop("prompt", "")), metadata)


def _table(scored: list[Scored]) -> Table:
    names = sorted({name for one in scored if one.score for name in one.score.components})
    table = Table("reward", *names, "response", "answer", box=None, header_style="bold")
    for one in scored:
        components = one.score.components if one.score else {}
        total = f"{one.score.total:.3f}" if one.score else (one.error or "does not apply")[:60]
        answer = one.sample.metadata.get("answer", one.sample.metadata.get("ground_truth", ""))
        values = [_figure(components.get(name)) for name in names]
        table.add_row(total, *values, repr(one.sample.response[-60:]), str(answer)[:20])
    return table


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
