"""Find datums with a weight on tokens that the policy did not sample."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.algorithms.sequences import common_prefix
from mint.rl.datums.datum import Tokens, datum_tokens, values
from mint.rl.rollouts.rollout import Group


def unmasked(datums: Sequence[types.Datum], groups: Sequence[Group]) -> list[int]:
    """Return which datums have a weight on a token that the policy did not sample: the masked-loss
    bug.
    """
    masks: dict[Tokens, NDArray[np.bool_]] = {}
    for group in groups:
        for rollout in group.rollouts:
            for kept in (segment.trimmed() for segment in rollout.segments):
                tokens, sampled = tuple(kept.tokens), np.asarray(kept.sampled, dtype=bool)
                masks[tokens] = sampled | masks.get(tokens, sampled)  # one may quote another
    nearest = _Nearest(masks)
    return [
        index
        for index, datum in enumerate(datums)
        if (values(datum, "weights")[nearest.given(datum_tokens(datum))[1:]] != 0).any()
    ]


class _Nearest:
    """Finds what of a datum's tokens was given, by the answers that it begins or ends like."""

    def __init__(self, masks: dict[Tokens, NDArray[np.bool_]]) -> None:
        self._forwards = masks
        self._backwards = {tokens[::-1]: mask[::-1] for tokens, mask in masks.items()}
        self._sorted = {id(each): sorted(each) for each in (self._forwards, self._backwards)}

    def given(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return which tokens were given and not sampled, as far as can be told of a changed
        answer.
        """
        if tokens in self._forwards:
            return ~self._forwards[tokens]
        from_start = self._common(self._forwards, tokens)
        from_end = self._common(self._backwards, tokens[::-1])
        given = np.zeros(len(tokens), dtype=bool)
        if len(from_end):
            given[-len(from_end) :] = ~from_end[::-1]
        given[: len(from_start)] = ~from_start
        return given

    def _common(self, masks: dict[Tokens, NDArray[np.bool_]], tokens: Tokens) -> NDArray[np.bool_]:
        """The mask of the nearest answer, as far as it begins like these tokens."""
        known = self._sorted[id(masks)]
        place = bisect_left(known, tokens)
        neighbours = known[max(0, place - 1) : place + 1]
        nearest = max(neighbours, key=lambda other: common_prefix(other, tokens), default=())
        return masks.get(nearest, np.empty(0, bool))[: common_prefix(nearest, tokens)]
