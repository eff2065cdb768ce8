"""Rollouts as rows of a table, with their tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mint.rl.algorithms.importance import Array
from mint.rl.datums.datum import Tokens, datum_tokens, values
from mint.rl.rollouts.rollout import Segment
from mint.rl.sampling.batch import Batch, Update

Trained = dict[str, dict[Tokens, Array]]
"""The trainer's logprobs, entropies and advantages of trained datums, by their tokens."""


def trained_values(updates: Sequence[Update]) -> Trained:
    """Return the values of trained datums by tokens: ``edit_datums`` may reorder them."""
    found: Trained = {"trainer": {}, "entropy": {}, "advantages": {}}
    for update in (each for each in updates if each.refused is None):
        names = [datum_tokens(datum) for datum in update.datums]
        found["trainer"].update(zip(names, update.logprobs_D_T, strict=False))
        found["entropy"].update(zip(names, update.entropy_D_T, strict=False))
        for tokens, datum in zip(names, update.datums, strict=True):
            if "advantages" in datum.loss_fn_inputs:
                found["advantages"][tokens] = values(datum, "advantages")
    return found


def _aligned(found: Mapping[Tokens, Array], segment: Segment) -> list[float | None] | None:
    """Return values of targets as values of tokens; None for those that were not trained on."""
    array = found.get(tuple(segment.trimmed().tokens))
    if array is None:
        return None
    given = [None, *(float(x) for x in array)]
    return [*given, *[None] * (len(segment.tokens) - len(given))]


def rollout_rows(batch: Batch, text: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    """Yield a row for every rollout of a step, those of replaced groups too."""
    trained = trained_values(batch.updates)
    digests = {v: policy.digest for v, policy in sorted(batch.policies.items()) if policy.digest}
    for number, group in enumerate(batch.everything):
        for index, rollout in enumerate(group.rollouts):
            stopped = "length" if rollout.truncated else "stop"
            yield {
                "step": batch.step,
                "group": number,
                "index": index,
                "replaced": number >= len(batch.groups),
                "identity": group.identity,
                "prompt": group.prompt,
                "messages": rollout.messages or None,
                "response": rollout.text,
                "reward": rollout.reward,
                "components": rollout.components,
                "reasons": rollout.reasons,
                "penalty": rollout.penalty,
                "advantage": rollout.advantage,
                "length": rollout.length,
                "truncated": rollout.truncated,
                "stop": stopped if rollout.length else None,
                "masked": rollout.masked,
                "error": rollout.error,
                "traceback": rollout.traceback,
                "trace": rollout.trace,
                "version": group.version,
                "sampled_at": rollout.sampled_at,
                "digests": {v: d for v, d in digests.items() if v in rollout.versions},
                "segments": [_segment(each, text, trained) for each in rollout.segments],
            }


def _segment(segment: Segment, text: Callable[[int], str], trained: Trained) -> dict[str, Any]:
    return {
        "tokens": segment.tokens,
        "pieces": [text(token) for token in segment.tokens],
        "mask": segment.sampled,
        "versions": segment.versions,
        "sampler": segment.logprobs,
        **{name: _aligned(found, segment) for name, found in trained.items()},
    }
