"""The limit on the work of one turn of the event loop."""

import asyncio
from collections import Counter

import pytest

from mint.service.turns import LoopTurns


async def measure(
    turns: LoopTurns, count: int, cancelled: range = range(0)
) -> list[tuple[int, int]]:
    """Let many tasks take a turn; return (turn of the loop, number of the task) as they began."""
    loop, turn, began = asyncio.get_running_loop(), 0, list[tuple[int, int]]()

    def tick() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(tick)

    async def work(number: int) -> None:
        await turns.take()
        began.append((turn, number))

    loop.call_soon(tick)
    tasks = [asyncio.create_task(work(number)) for number in range(count)]
    await asyncio.sleep(0)  # all have asked
    for number in cancelled:
        tasks[number].cancel()
    await asyncio.wait(tasks)
    return began


@pytest.mark.parametrize("count", [1, 4, 5, 1000])
def test_few_begin_in_each_turn_in_the_order_they_came(count: int) -> None:
    began = asyncio.run(measure(LoopTurns(4), count))
    assert [number for _, number in began] == list(range(count))
    assert max(Counter(turn for turn, _ in began).values()) == min(4, count)


def test_a_poll_that_went_away_takes_no_turn_from_the_others() -> None:
    began = asyncio.run(measure(LoopTurns(4), 100, cancelled=range(10, 90)))
    assert [number for _, number in began] == [*range(10), *range(90, 100)]
    turns = [turn for turn, _ in began]
    assert turns[-1] - turns[0] <= 6, "20 polls need 5 turns"


def test_turns_are_free_again_afterwards() -> None:
    async def use() -> None:
        turns = LoopTurns(4)
        await measure(turns, 50)
        await asyncio.sleep(0)
        took = turns.take()
        with pytest.raises(StopIteration):
            took.send(None)  # at once, without waiting

    asyncio.run(use())
