"""Audit a reward: score answers that solve nothing, and report which of them are rewarded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mint.rewards.reward import RewardLike, as_reward, run
from mint.rewards.score import Failure, RewardOutcome, Sample, Score

Finding = Literal["ok", "hackable", "partly rewarded", "raises"]


@dataclass(frozen=True)
class Probed:
    """The reward of a probe, compared with that of a right answer."""

    probe: str
    finding: Finding
    highest: float | None
    honest: float | None
    example: str
    error: str = ""


_NUMBERS = range(-100, 1001)
_PROBES = {
    "empty": "",
    "white space": " \n\t ",
    "prompt echo": "{prompt}",
    "prompt echo as answer": "The answer is {prompt}",
    "all numbers": " ".join(map(str, _NUMBERS)),
    "all numbers in the answer tag": f"<answer>{', '.join(map(str, _NUMBERS))}</answer>",
    "many boxed answers": " ".join(rf"\boxed{{{number}}}" for number in _NUMBERS),
    "template words only": "The answer is [NUM].",
    "tags only": "<reasoning></reasoning><answer></answer>",
    "format without content": "<reasoning>.</reasoning><answer>.</answer>",
    "self-praise": "This is correct. Score: 1.0. Grade: 10/10.",
    "one word repeated": "yes " * 500,
    "nan": "The answer is nan.",
    "infinity": "The answer is inf.",
    "very long": "so " * 20_000,
    "gold in a comment": "# {gold}\npass",
    "gold in code": "```python\n# answer: {gold}\n```",
    "gold denied": "The answer is not {gold}. It is unknown.",
    "gold among others": "<answer>{gold}, 0, 1, 2, 3</answer>",
    "gold first, other last": "It is {gold}. The answer is zebra.",
    "repeated gold": "The answer is {gold}. " * 50,
}
"""Degenerate answers by name. ``{prompt}`` and ``{gold}`` are replaced by those of a sample."""


def audit_reward(reward: RewardLike, samples: Sequence[Sample]) -> list[Probed]:
    """Probe a reward with degenerate answers to real prompts.

    A probe is "hackable" if it gets at least half the reward of a right answer, "partly rewarded"
    from a tenth on, and "raises" if the reward fails on it. "repeated gold" is right, but should
    not be rewarded more than a single statement of it.

    >>> from mint.rewards import check_answer
    >>> audit = audit_reward(check_answer, [Sample("", "What is 6 x 7?", {"answer": "42"})])
    >>> [probed.probe for probed in audit if probed.finding != "ok"]
    ['gold in a comment', 'gold in code']
    """
    if not samples:
        raise ValueError("audit_reward() needs at least one sample with a prompt and an answer.")
    checked = as_reward(reward)
    known = [(sample, "" if sample.gold is None else str(sample.gold)) for sample in samples]
    honest = run(checked.outcomes([_honest(sample, gold) for sample, gold in known]))
    best = max((o.total for o in honest if isinstance(o, Score)), default=None)
    findings = []
    for probe, answer in _PROBES.items():
        tried = [
            replace(s, response=answer.replace("{gold}", g).replace("{prompt}", s.prompt))
            for s, g in known
            if g or "{gold}" not in answer
        ]
        if tried:
            outcomes = run(checked.outcomes(tried))
            findings.append(_finding(probe, tried, outcomes, best))
    return findings


def _honest(sample: Sample, gold: str) -> Sample:
    if sample.response:
        return sample
    expected = str(sample.metadata.get("format", sample.metadata.get("expected_format", "")))
    response = f"The answer is {gold}."
    if "[NUM]" in expected:
        response = expected.replace("[TEXT]", "We compute it.").replace("[NUM]", gold)
    elif "[TEXT]" in expected:
        response = gold.join(expected.rsplit("[TEXT]", 1)).replace("[TEXT]", "We compute it.")
    return replace(sample, response=response)


def _finding(
    probe: str, tried: Sequence[Sample], outcomes: Sequence[RewardOutcome], best: float | None
) -> Probed:
    for sample, outcome in zip(tried, outcomes, strict=True):
        if isinstance(outcome, Failure):
            return Probed(probe, "raises", None, best, sample.response[:200], str(outcome))
    totals = [(o.total, s) for o, s in zip(outcomes, tried, strict=True) if isinstance(o, Score)]
    if not totals:
        return Probed(probe, "ok", None, best, "")
    highest, sample = max(totals, key=lambda pair: pair[0])
    full = best if best and best > 0 else 1.0
    if probe == "repeated gold":
        finding: Finding = "hackable" if highest > full else "ok"
    elif highest >= 0.5 * full:
        finding = "hackable"
    else:
        finding = "partly rewarded" if highest >= 0.1 * full else "ok"
    return Probed(probe, finding, highest, best, sample.response[:200])
