"""A report as Markdown, and as one HTML file that needs nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mint.rewards.charts import STYLE, bar_chart, line_chart

Data = Mapping[str, Any]
_SHOWN_STEPS = 40
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE_STYLE = Path(__file__).with_name("report.css").read_text()


def as_markdown(data: Data) -> str:
    """Write a report as Markdown. What a model wrote is indented, so that it stays text."""
    lines = [f"# {_title(data)}", "", f"**{_verdict(data)}**", "", _figures(data), ""]
    for kind, text, *table in _blocks(data):
        match kind:
            case "h2" | "h3":
                lines += [f"{'#' * int(kind[1])} {_cell(text)}", ""]
            case "p":
                lines += [f"{text}:", ""]
            case "pre":
                lines += [*(f"    {line}" for line in text.replace("\r", "\n").split("\n")), ""]
            case "table":
                lines += [*_markdown_table(*table), ""]
    return "\n".join(lines) + "\n"


def as_html(data: Data) -> str:
    """Write a report as one HTML file with its plots inside. All text is escaped."""
    parts = [
        f"<h1>{escape(_title(data))}</h1>",
        f'<p class="verdict"><strong>{escape(_verdict(data))}</strong></p>',
        f"<p>{escape(_figures(data))}</p>",
        "<h2>Distribution of rewards</h2>",
        bar_chart([tuple(each) for each in data["histogram"]]),
    ]
    for kind, text, *table in _blocks(data):
        match kind:
            case "charts":
                parts += _charts(data)
            case "table":
                parts.append(_html_table(*table))
            case tag:
                parts.append(f"<{tag}>{escape(text)}</{tag}>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(_title(data))}</title><style>{_PAGE_STYLE}{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


# ---- what both say ----


def _blocks(data: Data) -> Iterator[tuple[Any, ...]]:
    """Everything below a report's first lines, in order: the kind of a block and its text."""
    yield "h2", "Rewards by step"
    yield "charts", ""
    numbers = ("mean", "std", "variance", "skewness", "q10", "q50", "q90")
    every = max(1, -(-len(data["by_step"]) // _SHOWN_STEPS))
    rows = [
        [str(row["step"]), str(row["count"]), *(f"{row[name]:.3f}" for name in numbers)]
        for row in data["by_step"][::every]
    ]
    yield "table", "", ("step", "rewards", *numbers[:4], "10%", "50%", "90%"), rows
    if means := data["component_means"]:
        related = data["component_correlations"]
        rows = [[_cell(name), f"{means[name]:.3f}", f"{related[name]:+.2f}"] for name in means]
        yield "h2", "Components"
        yield "table", "", ("component", "mean", "correlation with the total"), rows
    rows = []
    for kind in data["response_types"]:
        mean = "-" if kind["mean_reward"] is None else f"{kind['mean_reward']:.3f}"
        rows.append([_cell(kind["type"]), str(kind["count"]), f"{kind['share']:.0%}", mean])
    yield "h2", "Kinds of response"
    yield "table", "", ("kind", "count", "share", "mean reward"), rows
    yield "h2", "Common failures"
    for failure in data["failures"]:
        yield "h3", f"{failure['type']}: {failure['count']} ({failure['share']:.0%})"
        for each in failure["examples"]:
            reward = "not scored" if each["reward"] is None else f"reward {each['reward']:.3f}"
            answer = "" if each["answer"] is None else f", right: {_cell(str(each['answer']))}"
            yield "p", f"Step {each['step']}, {reward}{answer}"
            yield "pre", _example(each)
    for title, name in (("Highest rewards", "highest"), ("Lowest rewards", "lowest")):
        yield "h2", title
        for each in data[name]:
            yield "p", f"Reward {each['reward']:.3f}"
            yield "pre", f"{each['prompt'][-400:]}\n---\n{each['response'][:1000]}"


def _title(data: Data) -> str:
    run = data["run"]
    return f"Rewards of {run.get('task') or run.get('name') or 'a run'}"


def _verdict(data: Data) -> str:
    found = data.get("verdict") or {}
    word, evidence = str(found.get("verdict") or ""), str(found.get("evidence") or "")
    lead = f"{word[:1].upper()}{word[1:]}{'.' if evidence[:1].isupper() else ':'}" if word else ""
    parts = [lead, evidence, str(found.get("advice") or "")]
    return _cell(" ".join(part for part in parts if part)) or "no verdict"


def _figures(data: Data) -> str:
    read = "" if data["count"] + data["failed"] >= data["rollouts"] else " (evenly spaced steps)"
    return (
        f"{data['count']} rewards of {data['rollouts']} rollouts{read}, {data['failed']} not "
        f"scored; mean {data['mean']:.3f}, standard deviation {data['std']:.3f}, variance "
        f"{data['variance']:.3f}, skewness {data['skewness']:+.2f}, from {data['minimum']:.3f} to "
        f"{data['maximum']:.3f}; {data['ties']:.0%} of {data['groups']} groups have equal rewards; "
        f"correlation with length {data['length_correlation']:+.2f}."
    )


def _example(example: Data) -> str:
    reasons = [f"{name}: {reason}" for name, reason in example["reasons"].items()]
    error = [example["error"]] if example["error"] else []
    ends = [example["prompt"][-400:], "---", example["response"]]
    return "\n".join([*ends, *(["---"] if reasons or error else []), *reasons, *error])


# ---- Markdown and HTML ----


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "‹").replace(">", "›").split())


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _points(rows: Sequence[Data], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows]


def _charts(data: Data) -> Iterator[str]:
    rows = data["by_step"]
    yield "<p>Mean, with the band from the 10th to the 90th percentile.</p>"
    lines = {"mean": _points(rows, "mean"), "median": _points(rows, "q50")}
    yield line_chart(lines, [(row["step"], row["q10"], row["q90"]) for row in rows])
    for name in ("skewness", "variance"):
        yield f"<h3>{name}</h3>{line_chart({name: _points(rows, name)})}"
    for name, points in data["curves"].items():
        if name != "reward/mean":
            yield f"<h3>{escape(name)}</h3>{line_chart({name: [(x, y) for x, y in points]})}"
