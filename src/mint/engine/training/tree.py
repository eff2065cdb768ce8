"""Prefix trees: sequences that begin alike are computed once.

The rollouts of a group share their prompt, and the prompts of a few-shot batch share their
examples. A forest over all sequences of a batch holds each distinct prefix once: a node is a
token in its context. Nodes are numbered depth first, so that the descendants of node j are the
nodes j..ends[j]-1 and "j is an ancestor of i" is the comparison ``j <= i < ends[j]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mint.engine.messages import IntArray


@dataclass(frozen=True)
class PrefixTree:
    """A forest of token sequences, packed flat.

    ``members`` are the indices of its sequences in the caller's list; ``paths[m][t]`` is the node
    that token t of member m became; ``branches`` are the node ranges of each branch key, in order.
    """

    tokens: IntArray
    positions: IntArray
    ends: IntArray
    members: list[int]
    paths: list[IntArray]
    branches: list[tuple[int, slice]]

    @property
    def roots(self) -> IntArray:
        """The first node of each node's tree."""
        nodes = np.arange(len(self.positions))
        return np.maximum.accumulate(np.where(self.positions == 0, nodes, 0))


def pack(
    sequences: Sequence[IntArray], budget: int, keys: Sequence[int] | None = None
) -> list[PrefixTree]:
    """Pack sequences into forests of at most ``budget`` nodes (a longer sequence stands alone).

    Sequences share nodes only when their ``keys`` are equal (they run on the same adapter).

    >>> first, second = np.array([7, 8, 9]), np.array([7, 8, 5])
    >>> [tree] = pack([first, second], budget=100)
    >>> tree.tokens.tolist(), tree.ends.tolist()
    ([7, 8, 5, 9], [4, 4, 3, 4])
    """
    keys = keys or [0] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda i: (keys[i], _sort_key(sequences[i])))
    trees: list[PrefixTree] = []
    builder = _Builder()
    for i in order:
        shared = builder.shared(sequences[i], keys[i])
        if builder.members and builder.size + len(sequences[i]) - shared > budget:
            trees.append(builder.finish())
            builder, shared = _Builder(), 0
        builder.add(i, sequences[i], keys[i], shared)
    if builder.members:
        trees.append(builder.finish())
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


def _sort_key(tokens: IntArray) -> bytes:
    """Bytes that sort as the tokens do (ids are not negative)."""
    return tokens.astype(">i8").tobytes()


class _Builder:
    """Adds sequences in sorted order; the last path is all that a new one can share."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self.paths: list[IntArray] = []
        self.size = 0
        self._tokens: list[IntArray] = []
        self._starts: list[tuple[int, int, int]] = []  # node, depth, and key of each new piece
        self._last: tuple[int, IntArray] | None = None

    def add(self, member: int, tokens: IntArray, key: int, shared: int) -> None:
        fresh = np.arange(self.size, self.size + len(tokens) - shared, dtype=np.int64)
        path = np.concatenate([self.paths[-1][:shared], fresh]) if shared else fresh
        self._starts.append((self.size, shared, key))
        self._tokens.append(tokens[shared:])
        self.size += len(fresh)
        self.members.append(member)
        self.paths.append(path)
        self._last = (key, tokens)

    def shared(self, tokens: IntArray, key: int) -> int:
        """Return how many tokens a sequence begins with that are there already."""
        if self._last is None or self._last[0] != key:
            return 0
        length = min(len(self._last[1]), len(tokens))
        differs = self._last[1][:length] != tokens[:length]
        return int(differs.argmax()) if differs.any() else length

    def finish(self) -> PrefixTree:
        positions = np.empty(self.size, dtype=np.int64)
        ends = np.full(self.size, self.size, dtype=np.int64)
        for index, path in enumerate(self.paths):
            start, depth, _ = self._starts[index]
            positions[path[depth:]] = np.arange(depth, len(path))
            if index:
                ends[self.paths[index - 1][depth:]] = start
        return PrefixTree(
            tokens=np.concatenate(self._tokens) if self._tokens else np.empty(0, np.int64),
            positions=positions,
            ends=ends,
            members=self.members,
            paths=self.paths,
            branches=self._branches(),
        )

    def _branches(self) -> list[tuple[int, slice]]:
        branches: list[tuple[int, slice]] = []
        for start, _, key in self._starts:
            if not branches or branches[-1][0] != key:
                branches.append((key, slice(start, self.size)))
                if len(branches) > 1:
                    previous_key, previous = branches[-2]
                    branches[-2] = (previous_key, slice(previous.start, start))
        return branches
