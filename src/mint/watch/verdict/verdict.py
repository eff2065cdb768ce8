"""The verdict on a run, whether it is learning: a pure function of its metrics and events.

learning               reward or success rises by more than its noise
flat                   it was learning, and has not risen since
stalled                the answers of groups have equal rewards, or no metric has moved for long
diverging              numbers are not finite, or what was learned is being lost
hacking the reward     the reward rises while success or the holdout falls
finished               all steps are done, and it is neither diverging nor hacking the reward
too early to say       not enough steps for any of these
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from mint.watch.verdict.plateau import plateau_start, rises_after
from mint.watch.verdict.series import (
    WINDOW,
    Row,
    Series,
    Shift,
    constant_share,
    first_named,
    mean,
    median,
    series,
    shift,
    thin_out,
)

LEARNING, FLAT, STALLED, DIVERGING = "learning", "flat", "stalled", "diverging"
HACKING, FINISHED, EARLY = "hacking the reward", "finished", "too early to say"
VERDICTS = (LEARNING, FLAT, STALLED, DIVERGING, HACKING, FINISHED, EARLY)

REWARD = ("reward/mean", "reward", "mean_reward", "avg_reward")
SUCCESS = ("reward/success", "success", "accuracy", "exact_rate")
HOLDOUT, HIGH, LOW = "holdout/pass@1", "holdout/pass@1_high", "holdout/pass@1_low"
HOLDOUT_REWARD = "holdout/reward"
LOSS = ("train/loss_per_token", "loss_per_token", "train/loss", "loss")
_KINDS = ("groups/all_right", "groups/all_wrong", "groups/all_equal")
_SIGNAL = ("groups", "groups/signal", *_KINDS)
_HEALTH = ("train/grad_norm", "kl/k3", "policy/entropy", "length/truncated", "train/refused")
_FINITE = (*REWARD, *LOSS, "train/grad_norm", "kl/k3")
_WORDS = dict.fromkeys(REWARD, "reward") | dict.fromkeys(SUCCESS, "success")
_WORDS |= dict.fromkeys(LOSS, "loss")
NEEDED = (
    *("step", HOLDOUT_REWARD, HOLDOUT, HIGH, LOW),
    *(*REWARD, *SUCCESS, *LOSS, *_SIGNAL, *_HEALTH),
)
"""The metrics that a verdict reads."""

_MANY = 20
"""Steps before a run without movement counts as stalled."""
_CONSTANT = 0.8
"""Share of groups with equal rewards from which a run is stalled."""
_BEGINS_OR_STOPS = ("data", "resumed", "stopped", "lost")
_SOLVED = 0.9
_EXPLODED = 20.0
_LET_IT_RUN = "Let it run."


@dataclass(frozen=True)
class Verdict:
    """A verdict with its evidence, the step since which it holds, and advice."""

    verdict: str
    evidence: str
    since: int | None = None
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.evidence}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for summary.json."""
        return asdict(self)


@dataclass
class VerdictHistory:
    """The metrics and events that a verdict needs, kept by the recorder."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row], events: Iterable[Row]) -> Self:
        """Read the rows and events of a run."""
        found = cls()
        for row in rows:
            found.add(row)
        for event in events:
            found.add_event(event)
        return found

    def add(self, row: Row) -> None:
        """Add the metrics of a step."""
        self.rows.append({name: row[name] for name in NEEDED if name in row})
        self.last = dict(row)

    def add_event(self, event: Row) -> None:
        """Add an event, if it is a finding, a beginning or an end."""
        if event.get("event") in ("finding", *_BEGINS_OR_STOPS):
            kept = ("event", "step", "name", "text")
            self.events.append({name: event[name] for name in kept if name in event})


def judge(rows: Sequence[Row], events: Sequence[Row] = (), status: str = "running") -> Verdict:
    """Judge a run by its metrics and events.

    >>> rows = [{"step": n, "reward/mean": 0.1 + n / 50} for n in range(1, 31)]
    >>> print(judge(rows))
    learning: reward rose from 0.16 to 0.66 in 30 steps.
    >>> judge(rows[:2]).verdict
    'too early to say'
    """
    names = {*REWARD, *SUCCESS, *LOSS}
    count = sum(not names.isdisjoint(row) for row in rows)
    rows = thin_out(rows, HOLDOUT)
    trained = [row for row in rows if not names.isdisjoint(row)]
    found = (
        _not_finite(trained, events)
        or _hacking(rows, trained)
        or _collapsed(trained)
        or _constant(trained)
        or _moved(rows, trained)
    )
    if status == "finished" and found.verdict not in (DIVERGING, HACKING):
        return _finished(found, rows, count)
    return _ended_early(found, events) if status in ("failed", "interrupted") else found


def _ended_early(found: Verdict, events: Sequence[Row]) -> Verdict:
    """Say why a run ended after few steps, and advise no waiting for one that has ended."""
    last = next((e for e in reversed(events) if e.get("event") in _BEGINS_OR_STOPS), {})
    if found.verdict == EARLY and last.get("event") in ("stopped", "lost") and last.get("text"):
        return replace(found, evidence=f"the run ended: {last['text']}", advice="")
    if found.verdict == EARLY or found.advice == _LET_IT_RUN:
        return replace(found, advice="It ended before its last step: resume it.")
    return found


def _finished(found: Verdict, rows: Sequence[Row], count: int) -> Verdict:
    use = weights_to_use(rows)
    done = f"All {count} steps are done" if count > 1 else "The only step is done"
    evaluate = use or "Evaluate the final weights on a holdout."
    ways = {
        LEARNING: ("It learned: {}", f"{evaluate} It was still learning: more steps may help."),
        FLAT: ("It {}", f"{evaluate} More steps alone will not help."),
        STALLED: ("It had stopped learning: {}", f"{use} For another run: {found.advice}"),
        EARLY: (f"{done}, too few to tell.", f"{use} Train longer to see whether it learns."),
    }
    said, advice = ways[found.verdict]
    return Verdict(FINISHED, said.format(found.evidence), found.since, advice.strip())


def weights_to_use(rows: Sequence[Row]) -> str:
    """Name the best weights on the holdout: pass@1 decides, then reward, then the earlier step.

    Empty when the run has no holdout.

    >>> weights_to_use([{"step": 0, "holdout/pass@1": 0.1}, {"step": 5, "holdout/pass@1": 0.6}])
    'Use the final weights: they are the best on the holdout, 60%.'
    """
    rates, rewards = dict(series(rows, HOLDOUT)), dict(series(rows, HOLDOUT_REWARD))
    if not rates:
        return ""
    low, high = dict(series(rows, LOW)), dict(series(rows, HIGH))
    known = low.keys() & high.keys()

    def rank(step: int) -> tuple[float, float, int]:
        return round(rates[step], 9), round(rewards.get(step, 0.0), 9), -step

    def rate(step: int) -> str:
        interval = f" (95% interval {low[step]:.0%} to {high[step]:.0%})" if step in known else ""
        return f"{rates[step]:.0%}{interval}"

    best, last = max(rates, key=rank), max((step for step, _ in series(rows, "step")), default=0)
    if best == last:
        return f"Use the final weights: they are the best on the holdout, {rate(best)}."
    if last not in rates:
        final = "the final weights were not evaluated"
    elif rank(last)[0] == rank(best)[0]:
        final = "the final weights reach the same rate"
    else:
        final = f"the final weights reach {rate(last)}"
    what = f"the checkpoint of step {best}" if best > 0 else "the model before training"
    return f"Use {what}: it is the best on the holdout, {rate(best)}; {final}."


# ---- diverging ----


def _not_finite(trained: Sequence[Row], events: Sequence[Row]) -> Verdict | None:
    """Detect numbers that are not finite at the end of the run; NaN is written as null."""
    bad = []
    for row in reversed(trained):
        wrong = [name for name in _FINITE if name in row and row[name] is None]
        wrong += ["train/refused"] if row.get("train/refused") else []
        if not wrong:
            break
        bad.append((row.get("step"), wrong))
    advice = "Lower the learning rate, set grad_clip_norm=1.0, and resume from a checkpoint."
    stop = next((e for e in events if e.get("name") == "not_finite"), None)
    if stop is not None and (bad or stop.get("event") == "stopped"):
        step, evidence = stop.get("step"), str(stop.get("text") or "a number is not finite.")
    elif bad:
        step, wrong = bad[-1]
        what = "updates were refused" if wrong == ["train/refused"] else f"{wrong[0]} is not finite"
        evidence = f"{what} since step {step}." if isinstance(step, int) else f"{what}."
    else:
        return None
    return Verdict(DIVERGING, evidence, step if isinstance(step, int) else None, advice)


def _collapsed(trained: Sequence[Row]) -> Verdict | None:
    """Detect that what was learned is being lost, or that gradients have exploded."""
    name, values = _goal(trained)
    advice = (
        "Lower the learning rate, set grad_clip_norm=1.0 or kl_penalty_coef=0.05, and resume from "
        "the best checkpoint."
    )
    if move := shift(values):
        gain, lost = move.best - move.first, move.best - move.last
        worse_than_first = move.first - move.last > move.noise
        # The best of many windows is high by chance alone: a fall from it must be clearer.
        if lost > 1.5 * move.noise and (worse_than_first or lost > 0.5 * max(gain, 0.0)):
            evidence = (
                f"{_WORDS[name]} fell from {_shown(name, move.best)} at step {move.best_step} to "
                f"{_shown(name, move.last)}{_why(trained)}."
            )
            return Verdict(DIVERGING, evidence, move.best_step, advice)
    norms = series(trained, "train/grad_norm")
    if len(norms) >= 2 * WINDOW:
        before, now = median(norms[:-WINDOW][:_MANY]), median(norms[-WINDOW:])
        if before > 0 and now > _EXPLODED * before and not (move and move.rose):
            since = next((s for s, norm in norms if norm > _EXPLODED * before), None)
            evidence = f"the gradient norm grew from {before:.3g} to {now:.3g}."
            return Verdict(DIVERGING, evidence, since, advice)
    return None


def _why(trained: Sequence[Row]) -> str:
    """Return what accompanied a fall."""
    found = []
    for name, said in (("kl/k3", "KL"), ("length/truncated", "share of cut-off answers")):
        values = series(trained, name)
        if len(values) >= 2 * WINDOW:
            before, now = mean(values[:WINDOW]), mean(values[-WINDOW:])
            if now > 2 * before and now - before > 0.05:
                found.append(f"{said} rose from {before:.2f} to {now:.2f}")
    return f", while the {' and the '.join(found)}" if found else ""


# ---- hacking ----


def _hacking(rows: Sequence[Row], trained: Sequence[Row]) -> Verdict | None:
    """Detect that the reward rises while success or the holdout falls."""
    paid = shift(first_named(trained, REWARD)[1])
    if paid is None or not paid.rose:
        return None
    rose = f"reward rose from {paid.first:.2f} to {paid.last:.2f}"
    advice = (
        "Read the rollouts with the highest rewards, fix the reward (for example with "
        "mint.rewards.gated), and return to the best checkpoint on the holdout."
    )
    held_out = _held_out(rows)
    if len(held_out) >= 2:
        *earlier, now = held_out
        best = max(earlier, key=lambda row: float(row[HOLDOUT]))
        if now[HIGH] < best[HOLDOUT]:
            fell = f"{best[HOLDOUT]:.0%} at step {best['step']} to {now[HOLDOUT]:.0%}"
            evidence = f"{rose} while the holdout fell from {fell}."
            return Verdict(HACKING, evidence, int(best["step"]), advice)
        if now[HOLDOUT] > best[HOLDOUT]:
            return None
    right = shift(first_named(trained, SUCCESS)[1])
    if right and right.first - right.last > max(right.noise, 0.05):
        evidence = f"{rose} while success fell from {right.first:.0%} to {right.last:.0%}."
        return Verdict(HACKING, evidence, right.best_step, advice)
    return None


# ---- stalled, learning ----


def _constant(trained: Sequence[Row]) -> Verdict | None:
    """Detect that the answers of nearly every group have equal rewards."""
    shares = constant_share(trained)
    if len(shares) < 3:
        return None
    recent = mean(shares[-WINDOW:])
    if recent < _CONSTANT:
        return None
    since = shares[-1][0]
    for step, share in reversed(shares):
        if share < _CONSTANT - 0.15:
            break
        since = step
    last = trained[-WINDOW:]
    right, wrong, equal = (sum(value for _, value in series(last, name)) for name in _KINDS)
    kind = ", all right" if right > wrong else ", all wrong" if wrong else ""
    advice = (
        "There is little left to learn from these prompts: stop here, use harder ones, or set "
        "curriculum=true."
        if right > wrong
        else "Give partial credit, use easier prompts, or raise group_size and temperature, so "
        "that some answers are better than others."
    )
    if equal > max(right, wrong):
        kind = ", most neither all right nor all wrong"
        advice = (
            "Make the reward distinguish good answers from better ones, lower success_threshold "
            "if that reward is the goal, or raise group_size and temperature."
        )
    return Verdict(STALLED, f"{recent:.0%} of the groups have equal rewards{kind}.", since, advice)


def _moved(rows: Sequence[Row], trained: Sequence[Row]) -> Verdict:
    """Return whether reward, success or the holdout rose by more than its noise."""
    goals = [first_named(trained, names) for names in (SUCCESS, REWARD)]
    rising = [
        (name, values, move) for name, values in goals if (move := shift(values)) and move.rose
    ]
    if rising:
        found = _learning(*rising[0])
        others = rising[1:] if found.verdict == FLAT else []
        still = [each for each in others if rises_after(each[1], found.since or 0)]
        return _learning(*still[0]) if still else found
    held_out = _held_out(rows)
    if len(held_out) >= 2:
        first, now = held_out[0], held_out[-1]
        if now[LOW] > first[HOLDOUT] and now[HOLDOUT] > first[HIGH]:
            evidence = f"the holdout rose from {first[HOLDOUT]:.0%} to {now[HOLDOUT]:.0%}."
            return Verdict(LEARNING, evidence, int(first["step"]), _LET_IT_RUN)
    name, values = _goal(trained)
    move = shift(values)
    if name in LOSS and move and move.rose:
        return _learning(name, values, move)
    if move is None or len(values) < _MANY:
        count = len(trained)
        evidence = f"{count} step{'' if count == 1 else 's'} so far."
        return Verdict(EARLY, evidence, None, f"Wait for about {_MANY} steps.")
    change = (move.first - move.last) if name in LOSS else (move.last - move.first)
    evidence = (
        f"{_WORDS[name]} moved by {change:+.3f} in {_span(values)} steps, within its noise of "
        f"{move.noise:.3f}."
    )
    advice = "Raise the learning rate or group_size, or give more partial credit."
    return Verdict(STALLED, evidence, values[0][0], advice)


def _learning(name: str, values: Series, move: Shift) -> Verdict:
    """Return the verdict on a rise that continues or has ended."""
    levels = f"from {_shown(name, move.first)} to {_shown(name, move.last)}"
    moved = f"{_WORDS[name]} {'fell' if name in LOSS else 'rose'} {levels}"
    solved = name in SUCCESS and move.last >= _SOLVED
    done = "Nearly solved: stop here, or use harder prompts."
    if (end := plateau_start(values)) is not None:
        advice = (
            "Stop here, or change something: harder prompts, another learning rate, a larger "
            "group_size, a longer max_tokens."
        )
        after = values[-1][0] - end
        evidence = f"was learning until step {end}: {moved}; flat for the {after} steps since."
        return Verdict(FLAT, evidence, end, done if solved else advice)
    since = next((step for step, value in values if value > move.first + move.noise), values[0][0])
    advice = done if solved else _LET_IT_RUN
    return Verdict(LEARNING, f"{moved} in {_span(values)} steps.", since, advice)


# ---- words and numbers ----


def _goal(trained: Sequence[Row]) -> tuple[str, Series]:
    """Return the series that should rise: reward, or success, or the negative loss."""
    for names in (REWARD, SUCCESS):
        name, values = first_named(trained, names)
        if values:
            return name, values
    name, values = first_named(trained, LOSS)
    return name, [(step, -value) for step, value in values]


def _span(values: Series) -> int:
    """Return how many steps a series covers."""
    return max(len(values), values[-1][0] - values[0][0] + 1)


def _held_out(rows: Sequence[Row]) -> list[Row]:
    """Return the evaluations on the holdout that have an interval."""
    names = ("step", HOLDOUT, LOW, HIGH)
    return [row for row in rows if all(series([row], name) for name in names)]


def _shown(name: str, value: float) -> str:
    if name in SUCCESS:
        return f"{value:.0%}"
    return f"{-value:.3g}" if name in LOSS else f"{value:.2f}"
