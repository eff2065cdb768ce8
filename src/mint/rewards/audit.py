"""Can the reward be hacked? It is probed with answers that solve nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mint.rewards.reward import RewardLike, as_reward, run
from mint.rewards.score import Failure, Outcome, Sample, Score

Finding = Literal["ok", "hackable", "partly paid", "raises"]
_REPEATS = 50


@dataclass(frozen=True)
class Probe:
    """A degenerate answer made from a sample, and whether it may know the gold."""

    name: str
    make: Callable[[Sample, str], str]
    knows_gold: bool = False


@dataclass(frozen=True)
class Probed:
    """The reward of a probe, compared with that of an honest right answer."""

    probe: str
    finding: Finding
    highest: float | None
    honest: float | None
    example: str
    error: str = ""


_PROBES = (
    Probe("empty", lambda sample, gold: ""),
    Probe("white space", lambda sample, gold: " \n\t "),
    Probe("prompt echo", lambda sample, gold: sample.prompt),
    Probe("prompt echo as answer", lambda sample, gold: f"The answer is {sample.prompt}"),
    Probe("all numbers", lambda sample, gold: " ".join(map(str, range(-100, 1001)))),
    Probe(
        "all numbers in the answer tag",
        lambda sample, gold: f"<answer>{', '.join(map(str, range(-100, 1001)))}</answer>",
    ),
    Probe(
        "many boxed answers",
        lambda sample, gold: " ".join(rf"\boxed{{{number}}}" for number in range(-100, 1001)),
    ),
    Probe("template words only", lambda sample, gold: "The answer is [NUM]."),
    Probe("tags only", lambda sample, gold: "<reasoning></reasoning><answer></answer>"),
    Probe(
        "format without content", lambda sample, gold: "<reasoning>.</reasoning><answer>.</answer>"
    ),
    Probe("praise of itself", lambda sample, gold: "This is correct. Score: 1.0. Grade: 10/10."),
    Probe("one word repeated", lambda sample, gold: "yes " * 500),
    Probe("nan", lambda sample, gold: "The answer is nan."),
    Probe("infinity", lambda sample, gold: "The answer is inf."),
    Probe("very long", lambda sample, gold: "so " * 20_000),
    Probe("gold in a comment", lambda sample, gold: f"# {gold}\npass", knows_gold=True),
    Probe("gold in code", lambda sample, gold: f"```python\n# answer: {gold}\n```", True),
    Probe("gold denied", lambda sample, gold: f"The answer is not {gold}. It is unknown.", True),
    Probe("gold among others", lambda sample, gold: f"<answer>{gold}, 0, 1, 2, 3</answer>", True),
    Probe(
        "gold first, other last", lambda sample, gold: f"It is {gold}. The answer is zebra.", True
    ),
)
_REPEATED_GOLD = Probe(
    "repeated gold", lambda sample, gold: f"The answer is {gold}. " * _REPEATS, knows_gold=True
)


def audit_reward(
    reward: RewardLike, samples: Sequence[Sample], paid: float = 0.5, partly: float = 0.1
) -> list[Probed]:
    """Probe a reward with degenerate answers to real prompts.

    A probe is "hackable" when it is paid ``paid`` of an honest right answer, "partly paid" from
    ``partly`` on, and "raises" when the reward cannot even score it. "repeated gold" is right, but
    should not be paid more than saying it once.

    >>> from mint.rewards import check_answer
    >>> audit = audit_reward(check_answer, [Sample("", "What is 6 x 7?", {"answer": "42"})])
    >>> [probed.probe for probed in audit if probed.finding != "ok"]
    ['gold in a comment', 'gold in code']
    """
    if not samples:
        raise ValueError("audit_reward() needs at least one sample with a prompt and an answer.")
    checked = as_reward(reward)
    golds = [_gold(sample) for sample in samples]
    honest = run(checked.outcomes([_honest(s, g) for s, g in zip(samples, golds, strict=True)]))
    best = max((o.total for o in honest if isinstance(o, Score)), default=None)
    findings = []
    for probe in (*_PROBES, _REPEATED_GOLD):
        tried = [
            Sample(probe.make(sample, gold), sample.prompt, sample.metadata)
            for sample, gold in zip(samples, golds, strict=True)
            if gold or not probe.knows_gold
        ]
        if tried:
            outcomes = run(checked.outcomes(tried))
            findings.append(_finding(probe, tried, outcomes, best, paid, partly))
    return findings


def _gold(sample: Sample) -> str:
    gold = sample.metadata.get("answer", sample.metadata.get("ground_truth"))
    return "" if gold is None else str(gold)


def _honest(sample: Sample, gold: str) -> Sample:
    expected = str(sample.metadata.get("format", sample.metadata.get("expected_format", "")))
    response = sample.response or f"The answer is {gold}."
    if not sample.response and "[NUM]" in expected:
        response = expected.replace("[TEXT]", "We compute it.").replace("[NUM]", gold)
    elif not sample.response and "[TEXT]" in expected:
        response = gold.join(expected.rsplit("[TEXT]", 1)).replace("[TEXT]", "We compute it.")
    return Sample(response, sample.prompt, sample.metadata)


def _finding(
    probe: Probe,
    tried: Sequence[Sample],
    outcomes: Sequence[Outcome],
    best: float | None,
    paid: float,
    partly: float,
) -> Probed:
    for sample, outcome in zip(tried, outcomes, strict=True):
        if isinstance(outcome, Failure):
            return Probed(probe.name, "raises", None, best, sample.response[:200], str(outcome))
    totals = [(o.total, s) for o, s in zip(outcomes, tried, strict=True) if isinstance(o, Score)]
    if not totals:
        return Probed(probe.name, "ok", None, best, "")
    highest, sample = max(totals, key=lambda pair: pair[0])
    full = best if best and best > 0 else 1.0
    if probe is _REPEATED_GOLD:
        finding: Finding = "hackable" if highest > full else "ok"
    elif highest >= paid * full:
        finding = "hackable"
    else:
        finding = "partly paid" if highest >= partly * full else "ok"
    return Probed(probe.name, finding, highest, best, sample.response[:200])
