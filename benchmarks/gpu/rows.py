"""The table of ``benchmarks/results/gpu*.json``: rates, ratios, shares of the ceiling, targets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks import beside
from benchmarks.table import (
    Row,
    Target,
    gibibytes,
    rate,
    ratio,
    seconds,
    share,
    small,
)

SAMPLING = {"0.6b": {"1": 450.0, "48": 18_000.0, "256": 55_000.0}}
TRAINING = {"0.6b": Target(100_000.0, rate)}
TRAINING_MEMORY = {"0.6b": Target(24.0, gibibytes, at_least=False)}
GROUPS = {"0.6b": Target(300_000.0, rate)}
WHOLE_STEP = Target(0.8, share)
HANDOFF = Target(0.01, share, at_least=False)
ADAPTERS = Target(1.3, ratio, at_least=False)
FLAT = Target(1.2, ratio, at_least=False)
LARGE_TRAINING = Target(0.4, share)
LARGE_SAMPLING = Target(0.5, share)
GAP = {
    "exact": (Target(1e-4, small, at_least=False), Target(1e-4, small, at_least=False)),
    "auto": (Target(1e-3, small, at_least=False), Target(3e-2, small, at_least=False)),
}


class GpuResult:
    """A result and its sections, those that failed left out."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.shape: str = result["shape"]
        self.sizes = result["sizes"]
        self.result = result
        self.sections: dict[str, Any] = {
            name: section for name, section in result["sections"].items() if "error" not in section
        }

    def get(self, *path: str) -> Any:
        """Return a figure by its path, or None."""
        value: Any = self.sections
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def key(self, *parts: str) -> str:
        return ".".join(("gpu", self.shape, *parts))


def rows(result: dict[str, Any]) -> list[Row]:
    """Return the table of a result."""
    gpu = GpuResult(result)
    return [
        *_sampling(gpu),
        *_growth(gpu),
        *_training(gpu),
        *_grpo(gpu),
        *_adapters(gpu),
        *_long(gpu),
        *_ratios(gpu),
        *_gaps(gpu),
    ]


def _sampling(gpu: GpuResult) -> list[Row]:
    found = []
    targets = SAMPLING.get(gpu.shape, {})
    for answers in map(str, gpu.sizes["answers"]):
        speed = gpu.get("sampling", answers, "tokens_per_second")
        peer = gpu.get("peers", "generate", answers, "tokens_per_second")
        bound = gpu.get("sampling", answers, "share_of_bound")
        target: Target | None = Target(targets[answers], rate) if answers in targets else None
        figure = speed
        if gpu.shape == "8b" and answers == "64":
            target, figure = LARGE_SAMPLING, bound
        found.append(
            Row(
                gpu.key("sampling", answers),
                f"sampling, {answers} answers, {gpu.sizes['prompt']}-token prompts, "
                f"{gpu.sizes['new']} new tokens",
                rate(speed) if speed else "-",
                f"transformers `generate`: {rate(peer)}" if peer else "",
                ratio(speed / peer) if speed and peer else "",
                f"{share(bound)} of the bandwidth bound" if bound else "",
                target,
                figure,
            )
        )
    return found


def _growth(gpu: GpuResult) -> list[Row]:
    """Hold the cost of a token against that of the next smaller batch, from 8 answers on."""
    counts = [str(n) for n in gpu.sizes["answers"] if n >= 8]
    speeds = [gpu.get("sampling", answers, "tokens_per_second") for answers in counts]
    if len(speeds) < 2:
        return []
    figure = None
    if all(speeds):
        figure = max(smaller / larger for smaller, larger in pairwise(speeds))
    what = f"the largest growth of a token's cost from {counts[0]} to {counts[-1]} answers"
    shown = ratio(figure) if figure else "-"
    return [Row(gpu.key("growth"), what, shown, "", "", "", FLAT, figure)]


def _training(gpu: GpuResult) -> list[Row]:
    sizes = gpu.sizes
    peer = gpu.get("peers", "training", "tokens_per_second")
    rows_by_length = f"{sizes['rows']} × {sizes['length']} distinct tokens, all logprobs"
    is_large = gpu.shape == "8b"
    found = []
    for loss in ("cross_entropy", "importance_sampling"):
        speed = gpu.get("training", loss, "tokens_per_second")
        part = gpu.get("training", loss, "share_of_matmul")
        target = LARGE_TRAINING if is_large else TRAINING.get(gpu.shape)
        found.append(
            Row(
                gpu.key("training", loss),
                f"forward and backward, {loss}, {rows_by_length}",
                rate(speed) if speed else "-",
                f"transformers, no LoRA: {rate(peer)}" if peer else "",
                ratio(speed / peer) if speed and peer else "",
                f"{share(part)} of the matmul rate" if part else "",
                target,
                part if is_large else speed,
            )
        )
    found += [_memory(gpu), _groups(gpu)]
    return found


def _memory(gpu: GpuResult) -> Row:
    peaks = [
        gpu.get("training", loss, "peak_without_pool_gib")
        for loss in ("cross_entropy", "importance_sampling")
    ]
    peak = max(peaks) if all(peaks) else None
    peer = gpu.get("peers", "training", "peak_gib")
    return Row(
        gpu.key("training", "memory"),
        "- its memory, weights included, KV pool not",
        gibibytes(peak) if peak else "-",
        f"transformers, no LoRA: {gibibytes(peer)}" if peer else "",
        ratio(peer / peak) if peak and peer else "",
        "",
        TRAINING_MEMORY.get(gpu.shape),
        peak,
    )


def _groups(gpu: GpuResult) -> Row:
    sizes = gpu.sizes
    speed = gpu.get("groups", "tokens_per_second")
    distinct = gpu.get("training", "importance_sampling", "tokens_per_second")
    groups = sizes["rows"] // sizes["group"]
    return Row(
        gpu.key("groups"),
        f"the same in {groups} groups of {sizes['group']} with {sizes['shared']} shared tokens",
        rate(speed) if speed else "-",
        f"distinct: {rate(distinct)}" if distinct else "",
        ratio(speed / distinct) if speed and distinct else "",
        "",
        GROUPS.get(gpu.shape),
        speed,
    )


def _grpo(gpu: GpuResult) -> list[Row]:
    if "grpo" not in gpu.result["sections"]:
        return []
    sizes = gpu.sizes
    whole = gpu.get("grpo", "whole", "seconds")
    parts, over = gpu.get("grpo", "sum_of_parts"), gpu.get("grpo", "parts_over_whole")
    part, handoff = gpu.get("grpo", "handoff_share"), gpu.get("grpo", "handoff", "seconds")
    step = f"{sizes['grpo_prompts']} × {sizes['grpo_group']} × {sizes['grpo_new']} tokens"
    return [
        Row(
            gpu.key("grpo"),
            f"a GRPO step of {step} on the engine",
            seconds(whole) if whole else "-",
            f"its parts by themselves: {seconds(parts)}" if parts else "",
            share(over) if over else "",
            "",
            WHOLE_STEP,
            over,
        ),
        Row(
            gpu.key("grpo", "handoff"),
            "- handoff to a new sampler",
            seconds(handoff) if handoff else "-",
            "the step",
            share(part) if part is not None else "",
            "",
            HANDOFF,
            part,
        ),
        *_service(gpu, parts),
    ]


def _service(gpu: GpuResult, parts: float | None) -> list[Row]:
    """Hold the step through the service against the parts of a step on the engine alone."""
    if "service" not in gpu.result["sections"]:
        return []
    whole, handoff = gpu.get("service", "whole"), gpu.get("service", "handoff")
    over = parts / whole if parts and whole else None
    part = gpu.get("service", "handoff_share")
    return [
        Row(
            gpu.key("service"),
            "the same step through the SDK, HTTP and the service",
            seconds(whole) if whole else "failed",
            f"the parts on the engine: {seconds(parts)}" if parts else "",
            share(over) if over else "",
            "",
            WHOLE_STEP,
            over,
        ),
        Row(
            gpu.key("service", "handoff"),
            "- handoff to a new sampler",
            seconds(handoff) if handoff else "failed",
            "the step",
            share(part) if part is not None else "",
            "",
            HANDOFF,
            part,
        ),
        *beside.rows(gpu.key("service", "beside"), gpu.get("service", "beside")),
    ]


def _adapters(gpu: GpuResult) -> list[Row]:
    if "adapters" not in gpu.result["sections"]:
        return []
    cost, many = gpu.get("adapters", "cost"), gpu.get("adapters", "many", "tokens_per_second")
    one = gpu.get("adapters", "one", "tokens_per_second")
    return [
        Row(
            gpu.key("adapters"),
            f"{gpu.sizes['adapters']} adapters at once, {gpu.sizes['adapter_answers']} answers",
            rate(many) if many else "-",
            f"one adapter: {rate(one)}" if one else "",
            f"{ratio(cost)} the time" if cost else "",
            "",
            ADAPTERS,
            cost,
        )
    ]


def _long(gpu: GpuResult) -> list[Row]:
    if "long" not in gpu.result["sections"]:
        return []
    context = f"{gpu.sizes['context']:,} tokens of context"
    figures = {
        f"{context}: prefill": (rate, gpu.get("long", "prefill_tokens_per_second")),
        f"{context}: a new token": (seconds, gpu.get("long", "decode_seconds_per_token")),
        f"{context}: forward and backward": (rate, gpu.get("long", "train", "tokens_per_second")),
    }
    found = [
        Row(gpu.key("long", str(number)), what, form(figure) if figure else "failed")
        for number, (what, (form, figure)) in enumerate(figures.items())
    ]
    if heavy := gpu.get("prefill", "tokens_per_second"):
        sizes = gpu.sizes
        what = (
            f"{sizes['heavy_prompts']} prompts of {sizes['heavy_prompt']:,} tokens, "
            f"{sizes['heavy_new']} new tokens each: all tokens"
        )
        found.append(Row(gpu.key("prefill"), what, rate(heavy)))
    return found


def _ratios(gpu: GpuResult) -> list[Row]:
    """Return rows without targets: what sharing, kept prefixes and chunked prefill are worth."""
    texts = {
        ("stall", "stall"): "the longest step while a long prompt joins, of the usual one",
        ("sharing", "train_speedup_from_sharing"): "training: distinct / shared prompts",
        ("sharing", "sample_speedup_from_batching"): "sampling: one by one / one burst",
        ("conversation", "speedup_from_kept_prefixes"): "turns 2 on: nothing kept / prefixes kept",
    }
    return [
        Row(gpu.key(*path), what, ratio=ratio(figure))
        for path, what in texts.items()
        if (figure := gpu.get(*path)) is not None
    ]


def _gaps(gpu: GpuResult) -> list[Row]:
    found = []
    for number, precision in enumerate(gpu.result["settings"]["precision"]):
        section = "gap" if number == 0 else f"gap-{precision}"
        if section not in gpu.result["sections"]:
            continue
        name = precision
        if number == 0 and (plan := gpu.get("load", "plan")):
            name = f"{precision} ({plan['precision']})" if precision == "auto" else precision
        for which, target in zip(
            ("mean", "largest"), GAP.get(precision, (None, None)), strict=True
        ):
            figure = gpu.get(section, which)
            text = f"sampler against trainer, {name}, {which}"
            shown = small(figure) if figure is not None else "failed"
            found.append(
                Row(gpu.key("gap", precision, which), text, shown, target=target, figure=figure)
            )
    return found


def notes(result: dict[str, Any]) -> list[str]:
    """Return what a reader needs to know besides: the machine, the ceilings, and failures."""
    gpu = GpuResult(result)
    machine = result["machine"]
    lines = [
        f"Qwen3-{gpu.shape} shape with random weights on one {machine['device']}, torch "
        f"{machine['torch']}, transformers {machine['transformers']}, {result['date'][:10]}, "
        f"precision {result['settings']['precision'][0]}, LoRA rank {result['settings']['rank']} "
        "on the seven projections of every layer, logprobs returned. Medians of a few rounds after "
        "those that warm up."
    ]
    if matmul := gpu.get("ceilings", "matmul"):
        speeds = ", ".join(f"{speed / 1e12:,.1f} TFLOP/s {name}" for name, speed in matmul.items())
        copy = gpu.get("ceilings", "copy")
        lines.append(f"The device in the same run: {speeds}, {copy / 1e12:.2f} TB/s copied.")
    earlier: dict[str, list[str]] = {}
    for name, section in result["sections"].items():
        if name not in ("build", "load") and "date" in section:
            earlier.setdefault(section["date"][:10], []).append(name)
    for date, names in sorted(earlier.items()):
        lines.append(f"Measured earlier, on {date}, with the code of that day: {', '.join(names)}.")
    for name, section in result["sections"].items():
        if "error" in section:
            lines.append(f"{name} failed: {section['error']}")
    return lines
