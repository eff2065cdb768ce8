"""Guards: functions that look for common failures of RL in the metrics of each step.

A guard compares the metrics of a step with those of earlier steps. A finding says what was seen,
what it means, and what to change.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mint.rl.settings.config import CLIPPED, RLConfig

Metrics = Mapping[str, float]
Report = tuple[str, str]  # what was seen, and what to change; the finding has the guard's name
_BASELINE = 3  # first steps, which the later ones are compared with
_WINDOW = 5  # last steps, which are averaged to reduce noise
_CLEAR = 0.05  # a difference of shares, or of rewards up to 1, that is not noise
_ROUNDING = 1e-9  # smaller differences of shares are ignored
_COMPONENT = "component/"
_SOLVED = 0.9  # a success rate above which little is left to explore


@dataclass(frozen=True)
class Finding:
    """A problem in a run: its name, what was seen, and what to change."""

    name: str
    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}: {self.seen} {self.advice}"


class Guards:
    """All guards, and the metrics of earlier steps that they compare with."""

    def __init__(self, cfg: RLConfig) -> None:
        self.cfg = cfg
        self.first: list[dict[str, float]] = []
        self.last: list[dict[str, float]] = []
        self.evaluations: list[dict[str, float]] = []
        self.reported: dict[str, int] = {}  # findings, and how many steps ago they were last seen
        self.changes: dict[str, tuple[float, int]] = {}  # of components: sum of squares, and count

    def begin(self, evaluation: Metrics) -> None:
        self.evaluations.append(dict(evaluation))

    def check(self, metrics: Metrics) -> list[Finding]:
        """Return the findings after a step."""
        row = dict(metrics)
        for name in row.keys() & (self.last[-1].keys() if self.last else ()):
            if name.startswith(_COMPONENT):
                squares, count = self.changes.get(name, (0.0, 0))
                self.changes[name] = squares + (row[name] - self.last[-1][name]) ** 2, count + 1
        if len(self.first) < _BASELINE:
            self.first.append(row)
        self.last = [*self.last, row][-_WINDOW:]
        if "holdout/pass@1" in row:
            held_out = {name: value for name, value in row.items() if name.startswith("holdout/")}
            self.evaluations.append({**held_out, "train": self.recent("reward/mean") or 0.0})
        return [Finding(guard.__name__, *found) for guard in _GUARDS for found in guard(row, self)]

    def news(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings that were not seen in the last steps: worth a line on the screen."""
        fresh = [finding for finding in findings if finding.name not in self.reported]
        ago = {name: steps + 1 for name, steps in self.reported.items() if steps < _WINDOW}
        self.reported = {**ago, **{finding.name: 0 for finding in findings}}
        return fresh

    def fatal(self, findings: Iterable[Finding]) -> Finding | None:
        """Return the first finding that ends the run, by the config's ``stop_on``."""
        return next((f for f in findings if f.name in self.cfg.stop_on), None)

    def baseline(self, name: str) -> float | None:
        """Return the mean of the first steps, once there are later ones."""
        if len(self.first) < _BASELINE or self.first[-1] == self.last[-1]:
            return None
        return _mean(self.first, name)

    def recent(self, name: str) -> float | None:
        return _mean(self.last, name)

    def noise(self, name: str) -> float:
        """Return how much a component may differ from the first steps to the last by chance."""
        squares, count = self.changes.get(name, (0.0, 1))
        return 3 * math.sqrt(squares / (2 * count) * (1 / _BASELINE + 1 / _WINDOW))

    def state(self) -> dict[str, Any]:
        history = {"first": self.first, "last": self.last, "evaluations": self.evaluations}
        return {"history": history, "told": self.reported, "changes": self.changes}

    def load(self, state: Mapping[str, Any]) -> None:
        history = state["history"]
        self.first, self.last = list(history["first"]), list(history["last"])
        self.evaluations, self.reported = list(history["evaluations"]), dict(state["told"])
        self.changes = dict(state.get("changes", {}))


def _mean(rows: list[dict[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return fmean(values) if values else None


def _clear(*rewards: float) -> float:
    """Return the smallest difference of rewards of this size that is not noise."""
    return _CLEAR * max(1.0, *(abs(reward) for reward in rewards))


def no_signal(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Nothing to learn from: every group has equal rewards."""
    cfg, datums = guards.cfg, m.get("datums", 1.0)
    only_terms = cfg.trains_every_answer and not cfg.compares_batch and m.get("groups/signal") == 0
    if datums > 0 and not only_terms:
        return
    if signal := m.get("groups/signal", 0.0):
        seen = f"datums=0, though {signal:.0f} groups have better and worse answers."
        yield seen, "Check which datums edit_datums keeps."
        return
    right, wrong = m.get("groups/all_right", 0.0), m.get("groups/all_wrong", 0.0)
    equal = m.get("groups/all_equal", 0.0)
    if m.get("groups/unscored", 0.0) > max(right, wrong, equal):
        advice = "Most answers are excluded: see reward_errors and mask_truncated."
    elif equal > max(right, wrong):
        advice = (
            "In most groups every answer earns the same reward above 0: make the reward "
            "distinguish good answers from better ones, lower success_threshold if that reward is "
            "the goal, or raise group_size and temperature."
        )
    elif right > wrong:
        more = "" if guards.cfg.curriculum else ", or set curriculum=true"
        advice = f"The prompts are too easy now: use harder ones{more}."
    else:
        advice = (
            "The prompts are too hard, or the reward gives no partial credit: give some, use "
            "easier prompts, or raise group_size and temperature."
        )
    yield (
        f"{'groups/signal' if datums else 'datums'}=0: {right:.0f} groups are all right, "
        f"{wrong:.0f} all wrong"
        f"{f', {equal:.0f} equally good' if equal else ''}, so no answer was better than another.",
        advice,
    )


def reward_hacking(m: Metrics, guards: Guards) -> Iterator[Report]:
    """The training reward rises while the holdout falls or does not move."""
    if "holdout/pass@1" not in m or len(guards.evaluations) < 2:
        return
    start = _mean(guards.first, "reward/mean") or 0.0  # for the evaluation before the first step
    *earlier, now = ({"train": start, **each} for each in guards.evaluations)
    best = max(earlier, key=lambda row: (round(row["holdout/pass@1"], 9), row["holdout/reward"]))
    paid, held_out = best["holdout/reward"], now["holdout/reward"]
    fewer_right = now["holdout/pass@1_high"] < best["holdout/pass@1"] - _ROUNDING
    by_chance = now.get("holdout/reward_high", math.inf) >= paid  # of few prompts
    fell = fewer_right or (held_out < paid - 2 * _clear(paid, held_out) and not by_chance)
    if fell and now["train"] > best["train"] + _clear(best["train"], now["train"]):
        before, how = best, "fell"
    elif _left_behind(earlier[0], now):
        before, how = earlier[0], "did not rise with it:"
    else:
        return
    yield (
        f"the training reward rose from {before['train']:.3f} to {now['train']:.3f} while the "
        f"holdout {how} from {before['holdout/pass@1']:.1%} to {now['holdout/pass@1']:.1%}.",
        "The policy is exploiting the reward: read the rollouts with the highest rewards, fix the "
        "reward, and return to the best checkpoint.",
    )


def _left_behind(first: Metrics, now: Metrics) -> bool:
    """Return whether the training reward rose far above a holdout that did not move."""
    train, paid, held_out = now["train"], first["holdout/reward"], now["holdout/reward"]
    return (
        train > first["train"] + 4 * _clear(first["train"], train)
        and train > held_out + 2 * _clear(train, held_out)  # or it only became more certain
        and held_out < paid + _clear(paid, held_out) / 2
        and now["holdout/pass@1_low"] <= first["holdout/pass@1"] + _ROUNDING
    )


def length_runaway(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Answers grow while the success rate does not."""
    before, now = guards.baseline("length/mean"), guards.recent("length/mean")
    right, right_now = guards.baseline("reward/success"), guards.recent("reward/success")
    if not before or now is None or right is None or right_now is None:
        return
    cfg = guards.cfg
    if now > cfg.length_growth * before and right_now <= right + _CLEAR:
        remedy = "raise overlong_limit" if cfg.overlong_buffer else "set overlong_buffer"
        remedy += "" if cfg.token_weights == "constant" else " or advantage=dr_grpo"
        yield (
            f"answers grew from {before:.0f} to {now:.0f} tokens, and no more of them are right.",
            f"The reward favours length: {remedy}, or penalise length in the reward.",
        )


def component_runaway(m: Metrics, guards: Guards) -> Iterator[Report]:
    """One component of the reward rises at the cost of the others."""
    gains = []  # as a multiple of the smallest clear difference, as it is, and the component's name
    for name in (each for each in m if each.startswith(_COMPONENT)):
        before, now = guards.baseline(name), guards.recent(name)
        if before is not None and now is not None and abs(now - before) > guards.noise(name):
            gain = now - before
            gains.append((gain / _clear(before, now), gain, name.removeprefix(_COMPONENT)))
    if not gains:
        return
    (least, fall, loser), (most, rise, winner) = min(gains), max(gains)
    if most > 2 and least < -1:
        yield (
            f"{winner!r} rose by {rise:.2f} while {loser!r} fell by {-fall:.2f}.",
            f"The policy trades one for the other: reward {winner!r} only where {loser!r} is "
            "earned (mint.rewards.gated), or lower its weight.",
        )


def masked_loss(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Weights on tokens that the policy did not sample."""
    if m.get("datums/unmasked", 0.0) > 0:
        yield (
            f"{m['datums/unmasked']:.0f} datums have weight on tokens of the prompt.",
            "Set weights to 0 for everything that was not sampled; see edit_datums.",
        )


def truncation(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Most answers were cut off."""
    share = m.get("length/truncated", 0.0)
    if share <= guards.cfg.truncation_limit:
        return
    advice = "Their rewards are misleading: set mask_truncated=true, raise max_tokens"
    if guards.cfg.mask_truncated:
        advice = "They are excluded from training: raise max_tokens"
    paid = ""
    if "reward/truncated" in m and "reward/untruncated" in m:
        paid = (
            f" They earned {m['reward/truncated']:.2f} on average, the others "
            f"{m['reward/untruncated']:.2f}."
        )
    yield (
        f"{share:.0%} of the answers were cut off (max_tokens={guards.cfg.max_tokens}).{paid}",
        f"{advice}, or set stop strings.",
    )


def entropy_collapse(m: Metrics, guards: Guards) -> Iterator[Report]:
    """The policy no longer explores, although it is not yet right."""
    name = guards.cfg.entropy_to_compare
    if name is None:
        return
    before, now = guards.baseline(name), guards.recent(name)
    solved = (guards.recent("reward/success") or 0.0) >= _SOLVED
    if before and now is not None and now < guards.cfg.entropy_floor * before and not solved:
        explore = " or clip_high_threshold" if guards.cfg.loss_fn in CLIPPED else ""
        yield (
            f"entropy fell from {before:.3f} to {now:.3f} per token: the answers of a group are "
            "nearly identical.",
            f"Lower the learning rate, raise temperature{explore}, or "
            f"{'raise' if guards.cfg.kl_penalty_coef else 'set'} kl_penalty_coef.",
        )


def kl_runaway(m: Metrics, guards: Guards) -> Iterator[Report]:
    """The policy is far from the reference."""
    if m.get("kl/k3", 0.0) > guards.cfg.kl_limit:
        yield (
            f"the KL to the reference is {m['kl/k3']:.2f} per token, over {guards.cfg.kl_limit:g}.",
            f"{'Raise' if guards.cfg.kl_penalty_coef else 'Set'} kl_penalty_coef, lower the "
            "learning rate, or return to an earlier checkpoint.",
        )


def repetition(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Answers repeat themselves."""
    if m.get("policy/repetition", 0.0) > guards.cfg.repetition_limit:
        yield (
            f"{m['policy/repetition']:.0%} of the 4-token runs in answers are repeats.",
            "Add mint.rewards.repetition_penalty, lower max_tokens, or lower the learning rate.",
        )


def reward_errors(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Rewards that could not be computed."""
    if m.get("reward/failures", 0.0) > 0:
        yield (
            f"{m['reward/failures']:.0f} of {m.get('rollouts', 0.0):.0f} rollouts could not be "
            "scored and are excluded from training.",
            "rollouts/ contains them with their tracebacks; fix the reward for such answers.",
        )


def not_finite(m: Metrics, guards: Guards) -> Iterator[Report]:
    """NaN or infinity."""
    wrong = [name for name, value in m.items() if not math.isfinite(value)]
    if wrong:
        yield (
            f"{', '.join(wrong)}: not a finite number.",
            f"{stability_advice(guards.cfg)} Return to the last checkpoint.",
        )


def stability_advice(cfg: RLConfig) -> str:
    """Return advice for keeping gradients finite."""
    return f"Lower the learning rate{'' if cfg.grad_clip_norm else ', and set grad_clip_norm=1.0'}."


def mismatch(m: Metrics, guards: Guards) -> Iterator[Report]:
    """Sampler and trainer disagree on the same weights. Checked only where they should agree."""
    same_logits = m.get("policy/temperature") == 1.0 or guards.cfg.matches_sampling
    same_weights = m.get("staleness/max", 0.0) == 0 and same_logits
    if same_weights and m.get("mismatch/mean", 0.0) > guards.cfg.mismatch_limit:
        remedy = "" if guards.cfg.truncated_importance else "Set truncated_importance=2.0. "
        yield (
            f"sampler and trainer differ by {m['mismatch/mean']:.3f} in logprob per token.",
            f"{remedy}Check that both run the same weights and precision.",
        )


_GUARDS: tuple[Callable[[Metrics, Guards], Iterator[Report]], ...] = (
    *(no_signal, reward_hacking, length_runaway, component_runaway, masked_loss, truncation),
    *(entropy_collapse, kl_runaway, repetition, reward_errors, not_finite, mismatch),
)
