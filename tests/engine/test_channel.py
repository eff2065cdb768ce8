"""The channel between service and engine: whole messages, in order, and no copies of large ones."""

import asyncio
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.engine.channel import AsyncChannel, Channel, encode
from mint.engine.messages import Datum, ForwardBackward, PackedOperation

LARGE = 1_000_000
ARRAYS = st.builds(
    lambda size, kind: np.arange(size).astype(kind),
    st.sampled_from([0, 1, 1000, 20_000, 300_000]),
    st.sampled_from(["<i8", "<f4"]),
)
MESSAGES = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(max_size=200_000) | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    return bool(a == b)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_messages_arrive_whole_and_in_order_in_both_directions(messages: list[Any]) -> None:
    async def exchange() -> list[Any]:
        ours, theirs = socket.socketpair()
        engine = Channel(theirs)

        def echo() -> None:
            for _ in messages:
                engine.send(engine.receive())

        thread = threading.Thread(target=echo)
        thread.start()
        channel = AsyncChannel(ours)
        for message in messages:
            channel.send(message)
        answers = [await channel.receive() for _ in messages]
        await asyncio.to_thread(thread.join)
        await channel.close()
        theirs.close()
        return answers

    assert is_same(asyncio.run(exchange()), messages)


def test_large_arrays_are_neither_copied_nor_read_only() -> None:
    array = np.zeros(LARGE, np.float32)
    head, buffer = encode({"array": array, "small": np.zeros(3)})
    assert len(head) < 1000
    assert np.shares_memory(np.frombuffer(buffer, np.float32), array)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=Channel(ours).send, args=(array,))
        thread.start()
        received = Channel(theirs).receive()
        thread.join()
    assert received.flags.writeable
    assert np.array_equal(received, array)


def test_a_packed_operation_passes_through_without_a_copy() -> None:
    tokens = np.arange(LARGE)
    data = [Datum(tokens, {"weights": np.ones(LARGE, np.float32)})]
    packed = PackedOperation.pack(ForwardBackward(data, "cross_entropy", forward_only=True))
    assert (packed.tokens, packed.forward_only) == (LARGE, True)
    head, payload = encode([packed])
    assert len(head) < 1000
    assert memoryview(packed.payload).obj is memoryview(payload).obj
    for protocol in (4, pickle.HIGHEST_PROTOCOL):  # a process pool uses the default protocol
        operation = pickle.loads(pickle.dumps(packed, protocol)).unpack()
        assert np.array_equal(operation.data[0].tokens, tokens)
        assert operation.loss_fn == "cross_entropy"


def test_an_end_that_is_gone_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    whole = b"".join(encode("hello"))
    theirs.sendall(whole + whole[:-1])
    theirs.shutdown(socket.SHUT_WR)
    channel = Channel(ours)
    assert channel.receive() == "hello"
    with pytest.raises(EOFError, match="closed the channel"):
        channel.receive()


def test_sending_to_a_closed_peer_fails_only_the_receiver() -> None:
    async def talk() -> None:
        ours, theirs = socket.socketpair()
        channel = AsyncChannel(ours)
        channel.send(np.zeros(LARGE))
        theirs.close()
        with pytest.raises((EOFError, ConnectionError)):
            await channel.receive()
        channel.send("unread")
        channel.finish()
        await channel.close()

    asyncio.run(talk())
