"""Rollouts as rows of a table, with their tokens."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from mint.rl.algorithms.importance import Array
from mint.rl.datums.datum import Tokens, datum_tokens, values
from mint.rl.rollouts.rollout import Rollout, Segment
from mint.rl.sampling.batch import Batch, Update

TrainedDatum = dict[str, Array | None]
"""The trainer's logprobs and entropies of a datum, and its advantages."""
Trained = dict[Tokens, list[TrainedDatum]]
"""The trained datums by their tokens: ``edit_datums`` may reorder them."""
_OF_A_ROLLOUT = (
    *("reward", "components", "reasons", "penalty", "advantage", "length", "truncated"),
    *("masked", "error", "traceback", "trace", "sampled_at"),
)
"""The columns that are attributes of a rollout by the same name."""
_NOT_TRAINED: TrainedDatum = {"trainer": None, "entropy": None, "advantages": None}


def trained_values(updates: Sequence[Update]) -> Trained:
    """Return the values of trained datums. Those with equal tokens keep their order."""
    found: Trained = {}
    for update in (each for each in updates if each.refused is None):
        rows = zip_longest(update.datums, update.logprobs_D_T, update.entropy_D_T)
        for datum, trainer, entropy in rows:
            known = "advantages" in datum.loss_fn_inputs
            advantages = values(datum, "advantages") if known else None
            trained = {"trainer": trainer, "entropy": entropy, "advantages": advantages}
            found.setdefault(datum_tokens(datum), []).append(trained)
    return found


def _take(trained: Trained, rollout: Rollout, index: int) -> TrainedDatum:
    """Take the values of the datum that a segment was trained as, if it was.

    Of equal answers, each takes those with its own advantages; the first if these were edited.
    """
    waiting = trained.get(tuple(rollout.segments[index].trimmed().tokens), [])
    if not rollout.counts or not waiting:
        return _NOT_TRAINED
    own = np.asarray(rollout.token_advantages(index)[1:], dtype=np.float32)
    for place, each in enumerate(waiting):
        given = each["advantages"]
        if given is not None and np.array_equal(given.astype(np.float32), own[: len(given)]):
            return waiting.pop(place)
    return waiting.pop(0) if rollout.has_advantage else _NOT_TRAINED


def _aligned(array: Array | None, segment: Segment) -> list[float | None] | None:
    """Return values of targets as values of tokens; None for those that were not trained on."""
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
                "stop": stopped if rollout.length else None,
                **{name: getattr(rollout, name) for name in _OF_A_ROLLOUT},
                "version": group.version,
                "digests": {v: d for v, d in digests.items() if v in rollout.versions},
                "segments": [
                    _segment(each, text, _take(trained, rollout, place))
                    for place, each in enumerate(rollout.segments)
                ],
            }


def _segment(segment: Segment, text: Callable[[int], str], trained: TrainedDatum) -> dict[str, Any]:
    return {
        "tokens": segment.tokens,
        "pieces": [text(token) for token in segment.tokens],
        "mask": segment.sampled,
        "versions": segment.versions,
        "sampler": segment.logprobs,
        **{name: _aligned(found, segment) for name, found in trained.items()},
    }
