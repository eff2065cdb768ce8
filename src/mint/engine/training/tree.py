"""Prefix trees: sequences that begin alike are computed once.

The rollouts of a group share their prompt, and the prompts of a few-shot batch share their
examples. A forest over all sequences of a batch holds each distinct prefix once: a node is a
token in its context. Nodes are numbered depth first, so that the descendants of node j are the
nodes j..ends[j]-1 and "j is an ancestor of i" is the comparison ``j <= i < ends[j]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mint.engine.messages import IntArray


@dataclass(frozen=True)
class PrefixTree:
    """A forest of token sequences, packed flat.

    ``members`` are the indices of its sequences in the caller's list; ``paths[m][t]`` is the node
    that token t of member m became.
    """

    tokens: IntArray
    positions: IntArray
    ends: IntArray
    members: list[int]
    paths: list[IntArray]

    @property
    def roots(self) -> IntArray:
        """The first node of each node's tree."""
        nodes = np.arange(len(self.positions))
        return np.maximum.accumulate(np.where(self.positions == 0, nodes, 0))


def pack(sequences: Sequence[IntArray], budget: int) -> list[PrefixTree]:
    """Pack sequences into forests of at most ``budget`` nodes (a longer sequence stands alone).

    >>> first, second = np.array([7, 8, 9]), np.array([7, 8, 5])
    >>> [tree] = pack([first, second], budget=100)
    >>> tree.tokens.tolist(), tree.ends.tolist()
    ([7, 8, 5, 9], [4, 4, 3, 4])
    """
    trees: list[PrefixTree] = []
    members: list[int] = []
    shared: list[int] = []  # tokens of each member that the one before it begins with too
    size = 0
    # Ids are not negative: these bytes sort as they do.
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">i8").tobytes()):
        common = _common(sequences[members[-1]], sequences[i]) if members else 0
        if members and size + len(sequences[i]) - common > budget:
            trees.append(_lay_out(sequences, members, shared))
            members, shared, size, common = [], [], 0, 0
        members.append(i)
        shared.append(common)
        size += len(sequences[i]) - common
    if members:
        trees.append(_lay_out(sequences, members, shared))
    return trees


def pack_evenly(sequences: Sequence[IntArray], budget: int) -> list[PrefixTree]:
    """Pack sequences into as few forests as ``pack`` does, of about the same size."""
    trees = pack(sequences, budget)
    if len(trees) < 2:
        return trees
    share = -(-sum(len(tree.tokens) for tree in trees) // len(trees))
    for size in (share, share + max(map(len, sequences))):
        even = pack(sequences, min(budget, size))
        if len(even) <= len(trees):
            return even
    return trees


def _common(one: IntArray, other: IntArray) -> int:
    """Return how many tokens two sequences begin with alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def _lay_out(sequences: Sequence[IntArray], members: list[int], shared: list[int]) -> PrefixTree:
    """Return the forest of sorted members; each adds what it does not share with the one before."""
    added = [sequences[m][depth:] for m, depth in zip(members, shared, strict=True)]
    starts = np.cumsum([0, *map(len, added)])
    positions, ends = np.empty(starts[-1], np.int64), np.full(starts[-1], starts[-1])
    paths: list[IntArray] = []
    for depth, (start, stop) in zip(shared, pairwise(starts), strict=True):
        path = np.arange(start, stop)
        positions[start:stop] = path - start + depth
        if paths:
            ends[paths[-1][depth:]] = start
            path = np.concatenate([paths[-1][:depth], path])
        paths.append(path)
    return PrefixTree(np.concatenate(added), positions, ends, members, paths)
