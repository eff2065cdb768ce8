"""Find datums with a weight on tokens that the policy did not sample."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.algorithms.sequences import common_prefix
from mint.rl.datums.datum import Tokens, datum_tokens, has_weight
from mint.rl.rollouts.rollout import Group

Masks = dict[Tokens, NDArray[np.bool_]]  # which tokens of each answer were sampled


def unmasked(datums: Sequence[types.Datum], groups: Sequence[Group]) -> list[int]:
    """Return which datums have a weight on a token that the policy did not sample."""
    masks: Masks = {}
    for group in groups:
        for rollout in group.rollouts:
            for kept in (segment.trimmed() for segment in rollout.segments):
                tokens, sampled = tuple(kept.tokens), np.asarray(kept.sampled, dtype=bool)
                masks[tokens] = sampled | masks.get(tokens, sampled)  # one may quote another
    return [
        index
        for index, datum in enumerate(datums)
        if has_weight(datum)[_given(masks, datum_tokens(datum))[1:]].any()
    ]


def _given(masks: Masks, tokens: Tokens) -> NDArray[np.bool_]:
    """Return which tokens of a datum were given. An edited answer is compared with those that begin
    or end like it."""
    if tokens in masks:
        return ~masks[tokens]
    from_start = _common(masks, tokens)
    backwards = {other[::-1]: mask[::-1] for other, mask in masks.items()}
    from_end = _common(backwards, tokens[::-1])
    given = np.zeros(len(tokens), dtype=bool)
    if len(from_end):
        given[-len(from_end) :] = ~from_end[::-1]
    given[: len(from_start)] = ~from_start
    return given


def _common(masks: Masks, tokens: Tokens) -> NDArray[np.bool_]:
    """The mask of the nearest answer, as far as it begins like these tokens."""
    known = sorted(masks)
    place = bisect_left(known, tokens)
    neighbours = known[max(0, place - 1) : place + 1]
    nearest = max(neighbours, key=lambda other: common_prefix(other, tokens), default=())
    return masks.get(nearest, np.empty(0, bool))[: common_prefix(nearest, tokens)]
