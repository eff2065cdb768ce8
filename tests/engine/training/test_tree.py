"""Prefix trees hold every sequence, share every common prefix, and know their ancestors."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mint.engine.training.tree import pack, pack_evenly

token_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


def arrays(sequences: list[list[int]]) -> list[np.ndarray]:
    return [np.array(sequence, np.int64) for sequence in sequences]


@given(token_lists, st.integers(1, 30))
def test_every_sequence_is_found_along_its_path(sequences: list[list[int]], budget: int) -> None:
    found = {}
    for tree in pack(arrays(sequences), budget):
        for member, path in zip(tree.members, tree.paths, strict=True):
            found[member] = tree.tokens[path].tolist()
            assert tree.positions[path].tolist() == list(range(len(path)))
    assert found == dict(enumerate(sequences))


@given(token_lists)
def test_a_tree_has_one_node_per_distinct_prefix(sequences: list[list[int]]) -> None:
    [tree] = pack(arrays(sequences), budget=1000)
    prefixes = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
    assert len(tree.tokens) == len(prefixes)


@given(token_lists)
def test_ends_say_who_descends_from_whom(sequences: list[list[int]]) -> None:
    [tree] = pack(arrays(sequences), budget=1000)
    ancestors = {
        (int(node), int(above))
        for path in tree.paths
        for depth, node in enumerate(path)
        for above in path[: depth + 1]
    }
    count = len(tree.tokens)
    by_ends = {(i, j) for i in range(count) for j in range(i + 1) if i < tree.ends[j]}
    assert by_ends == ancestors


def test_a_budget_is_kept_except_by_a_single_long_sequence() -> None:
    sequences = [np.arange(n) for n in (3, 9)] + [np.array([5, 5]), np.array([6, 6])]
    trees = pack(sequences, budget=4)
    assert all(len(tree.tokens) <= 4 or len(tree.members) == 1 for tree in trees)


def test_passes_are_of_one_size_where_sequences_allow_it() -> None:
    """A pass that is longer than the other is filled up to the next size that is recorded."""
    rng = np.random.default_rng(0)
    trees = pack_evenly([rng.integers(0, 10**6, 256) for _ in range(64)], budget=13_000)
    assert [len(tree.tokens) for tree in trees] == [8192, 8192]
