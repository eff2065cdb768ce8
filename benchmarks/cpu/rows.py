"""The table of ``benchmarks/results/cpu.json``: ratios to peers, shares of the ceiling, targets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from benchmarks import beside
from benchmarks.table import Row, Spread, Target, rate, ratio, seconds, share, small

NAMES = {"vllm": "vLLM", "transformers": "transformers `generate`", "peft": "transformers + PEFT"}

TWICE, THRICE, FOUR_TIMES = (Target(bound, ratio) for bound in (2.0, 3.0, 4.0))
NEVER_BELOW = Target(1.2, ratio)
STEP = Target(4.0, seconds, at_least=False)
EXACT = Target(1e-4, small, at_least=False)
HALF_OF_MATMUL = Target(0.5, share)
BUSY = 0.5  # processes that wanted to run in the minute before


@dataclass(frozen=True)
class Best:
    """The fastest contender of a family at some work, and how mint compares with it.

    A measurement of the contender is compared with mint's next one of the same work.
    """

    label: str
    rates: list[float]
    ratios: list[float]

    @property
    def ratio(self) -> float:
        return median(self.ratios)


class CpuResult:
    """A result with what follows from it."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.settings = result["settings"]
        self.long, self.short = (f"sample-{self.settings[key]}" for key in ("long", "short"))
        self.step = f"step-{self.settings['short']}"

    def records(self, what: str, who: str = "mint") -> list[dict[str, Any]]:
        """Return the measurements of one side's work, in order."""
        return [r for r in self.result["measurements"] if r["what"] == what and r["who"] == who]

    def rates(self, what: str, who: str = "mint") -> list[float]:
        return [record["tokens"] / record["seconds"] for record in self.records(what, who)]

    def ratios(self, what: str, who: str) -> list[float]:
        """Return how many times as fast mint was, directly after each measurement of a peer."""
        found: list[float] = []
        waiting: float | None = None
        for record in self.result["measurements"]:
            if record["what"] != what:
                continue
            if record["who"] == who:
                waiting = record["seconds"]
            elif record["who"] == "mint" and waiting is not None:
                found.append(waiting / record["seconds"])
                waiting = None
        return found

    def best(self, family: str, what: str) -> Best | None:
        """Return the fastest of a family, by its median."""
        found = []
        for name, facts in self.result["contenders"].items():
            rates, ratios = self.rates(what, name), self.ratios(what, name)
            if facts["family"] == family and rates and ratios:
                found.append(Best(facts["label"], rates, ratios))
        return max(found, key=lambda best: median(best.rates), default=None)

    @cached_property
    def dtype(self) -> str:
        """The type of number that mint multiplies; bfloat16, the fastest here, if not known."""
        precision = self.result.get("mint", {}).get("precision") or self.settings["precision"]
        return "float32" if precision == "exact" else "bfloat16"

    def ceiling(self, *path: str) -> float | None:
        """Return the median of a ceiling over the rounds."""
        values = []
        for measured in self.result["ceilings"]:
            value: Any = measured
            for key in path:
                value = (value or {}).get(key)
            values += [float(value)] if value else []
        return median(values) if values else None

    def matmul_seconds(self, trunk_tokens: float, head_tokens: float) -> float | None:
        """Return how long some tokens' products take at the machine's matmul rate."""
        speed, all_flops = self.ceiling("matmul", self.dtype), self.ceiling("flops_per_token")
        head = self.ceiling("head_flops_per_token")
        if speed is None or all_flops is None or head is None:
            return None
        return (trunk_tokens * (all_flops - head) + head_tokens * head) / speed

    @property
    def answers(self) -> int:
        return int(self.settings["prompts"] * self.settings["group"])

    def distinct_tokens(self, new: int) -> int:
        """Return the tokens of a burst with every prompt counted once."""
        return sum(self.settings["prompt_tokens"]) + self.answers * new

    def share_of_ceiling(self, what: str, passes: int, new: int) -> str:
        """Return the share of the matmul rate, prompts counted once and the head for answers."""
        times = [record["seconds"] for record in self.records(what)]
        need = self.matmul_seconds(self.distinct_tokens(new), self.answers * new)
        return share(passes * need / median(times)) if times and need else ""

    @property
    def decode_share(self) -> float | None:
        """The share of the matmul rate while all answers decode: long bursts less short ones."""
        times = {w: [r["seconds"] for r in self.records(w)] for w in (self.long, self.short)}
        if not all(times.values()):
            return None
        tokens = self.answers * (self.settings["long"] - self.settings["short"])
        need = self.matmul_seconds(tokens, tokens)
        took = median(times[self.long]) - median(times[self.short])
        return need / took if need and took > 0 else None


def rows(result: dict[str, Any]) -> list[Row]:
    """Return the table of a result."""
    cpu = CpuResult(result)
    long, short = cpu.settings["long"], cpu.settings["short"]
    burst = f"{cpu.settings['prompts']} × {cpu.settings['group']} answers"
    return [
        *_sampling(cpu, cpu.long, f"sampling, {burst} of {long} tokens", long, THRICE),
        *_sampling(cpu, cpu.short, f"sampling, {burst} of {short} tokens", short, None),
        _decoding(cpu),
        _training(cpu, f"training on {burst} of {short} tokens"),
        *_step(cpu, f"a GRPO step of {burst} of {short} tokens"),
        *beside.rows("cpu.beside", cpu.result.get("beside")),
        *_gap(cpu),
    ]


def _sampling(cpu: CpuResult, what: str, text: str, new: int, generate: Target | None) -> list[Row]:
    mine = _show(cpu.rates(what))
    ceiling = cpu.share_of_ceiling(what, 1, new)
    found = []
    for family, target in (("vllm", TWICE), ("transformers", generate)):
        best = cpu.best(family, what)
        row = Row(f"cpu.{what}.{family}", text, mine, NAMES[family], "", ceiling, target)
        found.append(_compared(row, best))
    worst = cpu.best("vllm", what)
    if what == cpu.long:
        lowest = min(worst.ratios) if worst else None
        shown = ratio(lowest) if lowest else ""
        text = f"{text}, the worst round"
        found.insert(
            1, Row(f"cpu.{what}.worst", text, "", NAMES["vllm"], shown, "", NEVER_BELOW, lowest)
        )
    return found


def _compared(row: Row, best: Best | None) -> Row:
    """Return a row with the peer's rate and the ratio to it in place of its bare name."""
    if best is None:
        return row
    spread, ratios = Spread.of(best.rates), Spread.of(best.ratios)
    assert spread
    assert ratios
    return Row(
        row.key,
        row.what,
        row.mint,
        f"{best.label}: {spread.show(rate)}",
        ratios.show(ratio),
        row.ceiling,
        row.target,
        best.ratio,
    )


def _show(rates: list[float]) -> str:
    spread = Spread.of(rates)
    return spread.show(rate) if spread else "-"


def _decoding(cpu: CpuResult) -> Row:
    figure = cpu.decode_share
    speed = cpu.ceiling("matmul", cpu.dtype)
    against = f"{speed / 1e9:,.0f} GFLOP/s {cpu.dtype}, one large product" if speed else ""
    shown = share(figure) if figure is not None else ""
    text = f"decoding {cpu.answers} rows, of the matmul rate"
    return Row("cpu.decoding", text, "", against, "", shown, HALF_OF_MATMUL, figure)


def _training(cpu: CpuResult, text: str) -> Row:
    ceiling = cpu.share_of_ceiling("train", 2, cpu.settings["short"])
    mine = _show(cpu.rates("train"))
    row = Row("cpu.train.peft", text, mine, NAMES["peft"], "", ceiling, FOUR_TIMES)
    return _compared(row, cpu.best("peft", "train"))


def _step(cpu: CpuResult, text: str) -> list[Row]:
    records = cpu.records(cpu.step)
    total = Spread.of([record["seconds"] for record in records])
    trl = cpu.best("trl", cpu.step)
    ceiling = cpu.share_of_ceiling(cpu.step, 3, cpu.settings["short"])
    against = ratios = ""
    if trl and (spread := Spread.of(trl.ratios)):
        times = Spread.of([record["seconds"] for record in cpu.records(cpu.step, "trl")])
        against = f"{trl.label}: {times.show(seconds) if times else '-'}"
        ratios = spread.show(ratio)
    shown = total.show(seconds) if total else "-"
    middle = total.middle if total else None
    found = [Row("cpu.step", text, shown, against, ratios, ceiling, STEP, middle)]
    for part in ("handoff", "sample", "train"):
        spread = Spread.of([record[part] for record in records])
        found.append(Row(f"cpu.step.{part}", f"- {part}", spread.show(seconds) if spread else "-"))
    return found


def _gap(cpu: CpuResult) -> list[Row]:
    gap = cpu.result.get("gap") or {}
    target = EXACT if cpu.dtype == "float32" else None
    return [
        Row(
            f"cpu.gap.{which}",
            f"sampler against trainer, logprob of a token, {which}",
            small(gap[which]),
            target=target,
            figure=gap[which],
        )
        for which in ("mean", "largest")
        if which in gap
    ]


def notes(result: dict[str, Any]) -> list[str]:
    """Return what a reader needs to know besides: the machine, every contender, and failures."""
    cpu = CpuResult(result)
    machine, settings = result["machine"], cpu.settings
    lines = [
        f"{settings['model']} on {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['system']}, commit {machine['commit']}, {result['date'][:10]}, "
        f"{settings['rounds']} rounds, mint's precision: {settings['precision']}"
        f"{_picked(result)}. LoRA rank {settings['rank']} on the seven projections of every layer. "
        "Medians, with the lowest and the highest of all rounds.",
        _describe_ceilings(cpu),
    ]
    if machine["load_before"] > BUSY:
        lines.append(
            f"The machine was busy before ({machine['load_before']:.1f} processes): measure again."
        )
    for name, facts in result["contenders"].items():
        if facts["error"]:
            lines.append(f"{facts['label']} failed: {facts['error']}")
            continue
        spreads = [
            f"{what}: {_show(rates)}"
            for what in (cpu.long, cpu.short, "train", cpu.step)
            if (rates := cpu.rates(what, name))
        ]
        lines.append(f"{facts['label']}: {'; '.join(spreads) or 'nothing measured'}")
    return [line for line in lines if line]


def _picked(result: dict[str, Any]) -> str:
    facts = result.get("mint", {})
    return f", which is {facts['precision']} ({facts['reason']})" if facts.get("precision") else ""


def _describe_ceilings(cpu: CpuResult) -> str:
    parts = []
    for dtype in ("bfloat16", "float32"):
        if speed := cpu.ceiling("matmul", dtype):
            parts.append(f"{speed / 1e9:,.0f} GFLOP/s {dtype}")
        if took := cpu.ceiling("products", dtype):
            parts.append(f"{cpu.answers} rows through its products in {seconds(took)} {dtype}")
    if copy := cpu.ceiling("copy"):
        parts.append(f"memory {copy / 1e9:,.0f} GB/s")
    return f"The machine in the same run: {', '.join(parts)}." if parts else ""
