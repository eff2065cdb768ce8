"""Slots for adapters: the decoding batch has a few, and adapters that wait for one take turns."""

from collections.abc import Collection, Iterable

from mint.engine.adapters.lora import MAX_SLOTS, Adapter


class SlotTurns:
    """The order in which adapters start answers when there are more adapters than slots.

    A slot is free once the last answer of its adapter is done. While others wait, the adapters that
    have held a slot longest start no more answers; waiting adapters are served in order.
    """

    def __init__(self) -> None:
        self._holding: list[Adapter | None] = []  # in the order in which they got their slots
        self._waiting: list[Adapter | None] = []  # in the order in which they asked

    def may_start(
        self, held: Collection[Adapter | None], wanted: Iterable[Adapter | None]
    ) -> set[Adapter | None]:
        """Return the adapters that may start answers, among those that hold or want a slot."""
        asking = dict.fromkeys(adapter for adapter in wanted if adapter not in held)
        self._holding = _in_order(self._holding, held)
        self._waiting = _in_order(self._waiting, asking)
        free = max(MAX_SLOTS - len(held), 0)
        short = max(len(self._waiting) - free, 0)
        return {*self._holding[short:], *self._waiting[:free]}


def _in_order(known: list[Adapter | None], now: Collection[Adapter | None]) -> list[Adapter | None]:
    """Return the items of ``now``: known ones in their order, then the others."""
    kept = [adapter for adapter in known if adapter in now]
    return [*kept, *(adapter for adapter in now if adapter not in kept)]
