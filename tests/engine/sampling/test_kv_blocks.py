"""The block manager: which blocks are shared, found again, and evicted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mint.engine.adapters.lora import Adapter
from mint.engine.messages import LoraSpec
from mint.engine.sampling.kv_blocks import BlockManager
from mint.engine.sampling.kv_pool import BLOCK_SIZE

ADAPTERS = [None, Adapter(LoraSpec(), {}), Adapter(LoraSpec(), {})]


def tokens(*blocks: int) -> np.ndarray:
    """A sequence of full blocks, each of one repeated token."""
    return np.repeat(np.array(blocks, np.int64), BLOCK_SIZE)


def fill(manager: BlockManager, adapter: int, text: list[int]) -> list[int] | None:
    """Take and learn the blocks of a sequence, as the scheduler does; None when it has no room."""
    found, _ = manager.find(ADAPTERS[adapter], tokens(*text))
    blocks = list(found)
    for _ in range(len(text) - len(found)):
        block = manager.take()
        if block is None:
            manager.release(blocks)
            return None
        blocks.append(block)
    number = manager._root(ADAPTERS[adapter])
    for block, token in zip(blocks, text, strict=True):
        number = manager.learn(block, number, tokens(token))
    return blocks


texts = st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=5))
steps = st.lists(st.one_of(texts, st.integers(0, 5)), max_size=30)


@given(steps, st.integers(2, 12))
def test_whatever_happens_a_prefix_is_found_with_its_own_content(history, size: int) -> None:
    """A block in use keeps its content, and no sequence gets a block of other content."""
    manager = BlockManager(size)
    held: list[tuple[int, list[int], list[int]]] = []
    content: dict[int, tuple[int, tuple[int, ...]]] = {}  # what was last written into each block
    for step in history:
        if isinstance(step, int):
            if step < len(held):
                manager.release(held.pop(step)[2])
            continue
        adapter, text = step
        known, _ = manager.find(ADAPTERS[adapter], tokens(*text))
        for index, block in enumerate(known):
            assert content[block] == (adapter, tuple(text[: index + 1]))
        manager.release(known)
        blocks = fill(manager, adapter, text)
        if blocks is None:
            continue
        assert 0 not in blocks
        for index, block in enumerate(blocks):
            content[block] = (adapter, tuple(text[: index + 1]))
        held.append((adapter, text, blocks))
        for other_adapter, other, mine in held:
            for index, block in enumerate(mine):
                assert content[block] == (other_adapter, tuple(other[: index + 1]))
    used = {block for _, _, blocks in held for block in blocks}
    assert manager.free == manager.capacity - len(used)


def test_a_shared_block_is_free_only_when_all_have_released_it() -> None:
    manager = BlockManager(5)
    one = fill(manager, 0, [7, 8])
    two = fill(manager, 0, [7, 9])
    assert one is not None
    assert two is not None
    assert one[0] == two[0]
    assert manager.free == 1
    manager.release(one)
    assert manager.free == 2
    manager.release(two)
    assert manager.free == 4


def test_the_least_recently_used_goes_first_and_the_end_of_a_sequence_before_its_beginning() -> (
    None
):
    manager = BlockManager(7)
    for text in ([1, 1, 1], [2, 2, 2]):
        blocks = fill(manager, 0, text)
        assert blocks is not None
        manager.release(blocks)
    again, _ = manager.find(None, tokens(1, 1, 1))
    manager.release(again)
    assert fill(manager, 0, [0, 0]) is not None
    lengths = [len(manager.find(None, tokens(*[n] * 3))[0]) for n in (1, 2)]
    assert lengths == [3, 1]


def test_adapters_share_nothing_even_when_one_is_gone() -> None:
    manager = BlockManager(200)
    for _ in range(50):  # an object made after another is gone may have its address
        adapter = Adapter(LoraSpec(), {})
        assert manager.find(adapter, tokens(1, 2))[0] == []
        block = manager.take()
        assert block is not None
        manager.learn(block, manager._root(adapter), tokens(1))
        manager.release([block])
        del adapter


def test_a_full_pool_gives_none_and_loses_nothing() -> None:
    manager = BlockManager(4)
    taken = [manager.take() for _ in range(4)]
    assert taken[3] is None
    manager.release([block for block in taken if block is not None])
    assert manager.free == 3


def test_after_forgetting_all_nothing_is_found() -> None:
    manager = BlockManager(4)
    blocks = fill(manager, 0, [1, 2])
    assert blocks is not None
    manager.forget_all()
    assert manager.find(None, tokens(1, 2))[0] == []
    manager.release(blocks)
    assert manager.free == 3
    assert manager.kept == 0
