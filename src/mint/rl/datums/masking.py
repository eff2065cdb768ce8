"""Find datums with a weight on tokens that the policy did not sample."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.datums.datum import Tokens, datum_tokens, has_weight
from mint.rl.rollouts.rollout import Group

Masks = dict[Tokens, NDArray[np.bool_]]  # which tokens of each answer were sampled
Index = Mapping[tuple[int, int], Sequence[Tokens]]  # the answers that contain a pair of tokens


def unmasked(datums: Sequence[types.Datum], groups: Sequence[Group]) -> list[int]:
    """Return which datums have a weight on a token that the policy did not sample.

    An edited datum is compared with the answer that it has most in common with.
    """
    masks: Masks = {}
    for group in groups:
        for rollout in group.rollouts:
            for kept in (segment.trimmed() for segment in rollout.segments):
                tokens, sampled = tuple(kept.tokens), np.asarray(kept.sampled, dtype=bool)
                masks[tokens] = sampled | masks.get(tokens, sampled)  # one may quote another
    tokens_D = [datum_tokens(datum) for datum in datums]
    index: defaultdict[tuple[int, int], list[Tokens]] = defaultdict(list)
    if any(tokens not in masks for tokens in tokens_D):
        for answer in masks:
            for pair in set(pairwise(answer)):
                index[pair].append(answer)
    return [
        i
        for i, (datum, tokens) in enumerate(zip(datums, tokens_D, strict=True))
        if has_weight(datum)[_given(masks, index, tokens)[1:]].any()
    ]


def _given(masks: Masks, index: Index, tokens: Tokens) -> NDArray[np.bool_]:
    """Return which tokens of a datum were given: those that are in its answer, and not sampled."""
    if tokens in masks:
        return ~masks[tokens]
    given = np.zeros(len(tokens), dtype=bool)
    pairs = list(pairwise(tokens))  # single tokens coincide too often
    shared = Counter(answer for pair in set(pairs) for answer in index.get(pair, ()))
    if shared:
        answer = max(shared, key=lambda other: shared[other] / (len(other) + len(tokens)))
        matcher = SequenceMatcher(None, list(pairwise(answer)), pairs)
        for theirs, mine, count in matcher.get_matching_blocks():
            if count:  # so many pairs have one token more
                given[mine : mine + count + 1] = ~masks[answer][theirs : theirs + count + 1]
        mask = masks[answer]
        sampled = {pair for i, pair in enumerate(pairwise(answer)) if mask[i] and mask[i + 1]}
        for i in (i for i, pair in enumerate(pairs) if pair in sampled):
            given[i : i + 2] = False  # an answer may quote its prompt
    return given
