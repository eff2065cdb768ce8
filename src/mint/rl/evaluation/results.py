"""Results of an evaluation by prompt: pass@k, majority vote, results by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, multimode
from typing import Any

from mint.rewards import extract_answer
from mint.rl.evaluation.scores import Evaluation, evaluate, pass_at_k
from mint.rl.rollouts.rollout import Group


@dataclass(frozen=True)
class PromptResult:
    """The answers to one prompt: their rewards (None where there is none) and their votes."""

    identity: str
    category: str
    rewards: tuple[float | None, ...]
    votes: tuple[str | None, ...] = ()
    unrewarded: int = 0  # answers for which the reward itself was None

    def right(self, threshold: float) -> list[bool]:
        """Return which answers are right. One that could not be scored is wrong."""
        return [reward is not None and reward >= threshold for reward in self.rewards]

    def majority(self, threshold: float) -> float:
        """Return 1.0 if the answer of most is right, else 0.0; the share of right ones in a tie.

        >>> votes = PromptResult("", "", (1.0, 0.0, 1.0), ("4", "5", "4"))
        >>> votes.majority(1.0)
        1.0
        """
        winners = multimode(vote for vote in self.votes if vote is not None)
        if not winners:
            return 0.0
        cast = list(zip(self.votes, self.right(threshold), strict=True))
        return fmean(fmean(right for vote, right in cast if vote == each) for each in winners)


@dataclass(frozen=True)
class SetResult:
    """The result on one set of prompts. ``left_out``: those to which the reward does not apply."""

    name: str
    prompts: tuple[PromptResult, ...]
    threshold: float
    left_out: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Answers that could not be scored, and count as wrong."""
        return self.evaluation.failed

    @property
    def evaluation(self) -> Evaluation:
        """pass@1, pass@k and reward with their intervals."""
        rewards = [prompt.rewards for prompt in self.prompts]
        unrewarded = sum(prompt.unrewarded for prompt in self.prompts)
        return evaluate(rewards, self.threshold, unrewarded, len(self.left_out))

    @property
    def samples(self) -> int:
        return min((len(prompt.rewards) for prompt in self.prompts), default=0)

    def pass_at(self, k: int) -> float:
        """Return the chance that one of ``k`` answers is right, estimated without bias.

        >>> two = PromptResult("", "", (1.0, 0.0, 0.0, 0.0))
        >>> SetResult("holdout", (two,), 1.0).pass_at(2)
        0.5
        """
        right = (prompt.right(self.threshold) for prompt in self.prompts)
        return fmean(pass_at_k(sum(each), len(each), k) for each in right)

    def passes(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, … and for all answers."""
        powers = [2**i for i in range(self.samples.bit_length()) if 2**i <= self.samples]
        return {k: self.pass_at(k) for k in sorted({*powers, self.samples})}

    def majority(self) -> float:
        """Return the share of prompts on which a vote of the answers is right."""
        return fmean(prompt.majority(self.threshold) for prompt in self.prompts)

    def by_category(self) -> dict[str, SetResult]:
        """Return the results of each category, by name. Empty when the prompts have none."""
        names = sorted({prompt.category for prompt in self.prompts} - {""})
        own = {name: tuple(p for p in self.prompts if p.category == name) for name in names}
        return {name: SetResult(name, prompts, self.threshold) for name, prompts in own.items()}


def collect_results(
    name: str, adapter: Any, groups: Sequence[Group], threshold: float
) -> SetResult:
    """Return the result of groups. Prompts to which the reward does not apply are left out."""
    left_out = find_left_out(groups)
    prompts = [
        PromptResult(
            group.identity,
            find_category(adapter, group.sample),
            tuple(rollout.reward for rollout in group.rollouts),
            tuple(_vote(adapter, rollout.text, group.sample) for rollout in group.rollouts),
            sum(not rollout.applies for rollout in group.rollouts),
        )
        for group in groups
        if group.identity not in left_out
    ]
    return SetResult(name, tuple(prompts), threshold, tuple(left_out))


def find_left_out(groups: Sequence[Group]) -> list[str]:
    """Return the prompts to which the reward does not apply: it is None for all their answers."""
    applies = {g.identity for g in groups if any(rollout.applies for rollout in g.rollouts)}
    return [name for name in dict.fromkeys(g.identity for g in groups) if name not in applies]


def find_category(adapter: Any, sample: Any) -> str:
    """Return a sample's category: the task's ``category(sample)``, or the sample's own field."""
    if hasattr(adapter, "category"):
        return str(adapter.category(sample))
    if isinstance(sample, Mapping):
        return str(sample.get("category", ""))
    return str(getattr(sample, "category", ""))


def _vote(adapter: Any, text: str, sample: Any) -> str | None:
    """Return an answer's vote: by the task's ``vote(response, sample)``, or its final answer."""
    if hasattr(adapter, "vote"):
        own = adapter.vote(text, sample)
        return None if own is None else str(own)
    return extract_answer(text) or text.strip() or None
