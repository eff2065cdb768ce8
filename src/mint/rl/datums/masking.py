"""Find datums with a weight on tokens that the policy did not sample."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.datums.datum import Tokens, datum_tokens, has_weight
from mint.rl.rollouts.rollout import Group

Masks = dict[Tokens, NDArray[np.bool_]]  # which tokens of each answer were sampled
Index = Mapping[tuple[int, int], Sequence[int]]
"""Which answers contain a pair of neighbouring tokens: single tokens coincide too often."""
_RARE = 64  # a pair of tokens in more answers does not help to find the answer of a datum


def unmasked(datums: Sequence[types.Datum], groups: Sequence[Group]) -> list[int]:
    """Return which datums have a weight on a token that the policy did not sample.

    An edited datum is compared with the answer with which it shares the most tokens.
    """
    masks: Masks = {}
    for group in groups:
        for rollout in group.rollouts:
            for kept in (segment.trimmed() for segment in rollout.segments):
                tokens, sampled = tuple(kept.tokens), np.asarray(kept.sampled, dtype=bool)
                masks[tokens] = sampled | masks.get(tokens, sampled)  # one answer may quote another
    tokens_D = [datum_tokens(datum) for datum in datums]
    index: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    answers = list(masks)
    if any(tokens not in masks for tokens in tokens_D):
        for number, answer in enumerate(answers):
            for pair in set(pairwise(answer)):
                index[pair].append(number)
    found = []
    for i, (datum, tokens) in enumerate(zip(datums, tokens_D, strict=True)):
        mask = masks.get(tokens)
        given = ~mask if mask is not None else _given(tokens, answers, masks, index)
        if has_weight(datum)[given[1:]].any():
            found.append(i)
    return found


def _given(
    tokens: Tokens, answers: Sequence[Tokens], masks: Masks, index: Index
) -> NDArray[np.bool_]:
    """Return which tokens of a datum are in its answer but were not sampled."""
    given = np.zeros(len(tokens), dtype=bool)
    pairs = list(pairwise(tokens))
    having = [index[pair] for pair in set(pairs) if pair in index]
    shared = Counter(chain.from_iterable([each for each in having if len(each) <= _RARE] or having))
    if not shared:
        return given
    nearest = max(shared, key=lambda n: shared[n] / (len(answers[n]) + len(tokens)))
    answer, mask = answers[nearest], masks[answers[nearest]]
    blocks = SequenceMatcher(None, list(pairwise(answer)), pairs).get_matching_blocks()
    for theirs, mine, count in blocks:
        if count:  # so many pairs have one token more
            given[mine : mine + count + 1] = ~mask[theirs : theirs + count + 1]
    sampled = {pair for i, pair in enumerate(pairwise(answer)) if mask[i] and mask[i + 1]}
    for i in (i for i, pair in enumerate(pairs) if pair in sampled):
        given[i : i + 2] = False  # an answer may quote its prompt
    return given
