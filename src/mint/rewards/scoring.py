"""Score samples for training: failures are counted and logged, and too many stop the run."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mint.rewards.reward import RewardLike, as_reward, run
from mint.rewards.score import Failure, Sample, Score

_LOGGER = logging.getLogger("mint.rewards")


class TooManyFailures(RuntimeError):
    """Too many samples could not be scored to train on the rest."""


@dataclass(frozen=True)
class Scored:
    """A sample with its outcome. Without a score it is left out of training."""

    sample: Sample
    score: Score | None
    error: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the sample has a score to train on."""
        return self.score is not None


class Scorer:
    """A reward that counts its failures over a run.

    >>> scorer = Scorer(lambda response: 1.0 / len(response), max_failure_share=0.5)
    >>> [scored.counts for scored in scorer.score([Sample("four"), Sample(""), Sample("x")])]
    [True, False, True]
    >>> scorer.failures, scorer.seen
    (1, 3)
    """

    def __init__(
        self,
        reward: RewardLike,
        max_failure_share: float = 0.2,
        min_samples: int = 20,
        on_failure: Callable[[Sample, Failure], None] | None = None,
    ) -> None:
        if not 0 <= max_failure_share <= 1:
            raise ValueError(f"max_failure_share must be from 0 to 1, not {max_failure_share}.")
        self.reward = as_reward(reward)
        self.max_failure_share = max_failure_share
        self.min_samples = min_samples
        self.on_failure = on_failure or _log
        self.seen = 0
        self.failures = 0
        self.reasons: Counter[str] = Counter()

    def score(self, samples: Sequence[Sample], step: int | None = None) -> list[Scored]:
        """Score the samples. Raises :class:`TooManyFailures` above the allowed share."""
        reward = self.reward if step is None else self.reward.at(step)
        scored = []
        for sample, outcome in zip(samples, run(reward.outcomes(samples)), strict=True):
            self.seen += 1
            if isinstance(outcome, Failure):
                self.failures += 1
                self.reasons[f"{outcome.reward}: {type(outcome.error).__name__}"] += 1
                self.on_failure(sample, outcome)
                scored.append(Scored(sample, None, str(outcome)))
            else:
                scored.append(Scored(sample, outcome))
        if self.seen >= self.min_samples and self.failures > self.max_failure_share * self.seen:
            most = self.reasons.most_common(3)
            reasons = ", ".join(f"{reason} ({count}×)" for reason, count in most)
            raise TooManyFailures(
                f"{self.failures} of {self.seen} samples could not be scored, more than the "
                f"{self.max_failure_share:.0%} allowed: {reasons}. Try the reward on a file of "
                "samples with `mint rewards test`, or raise max_failure_share."
            )
        return scored

    def metrics(self) -> dict[str, float]:
        """Return metrics to log beside the rewards."""
        share = self.failures / self.seen if self.seen else 0.0
        return {"reward/failures": float(self.failures), "reward/failure_share": share}


def _log(sample: Sample, failure: Failure) -> None:
    shown = {"prompt": sample.prompt[:500], "response": sample.response[:2000]}
    _LOGGER.warning("not scored: %s %s", failure, json.dumps(shown, ensure_ascii=False))
