"""Groups in flight: sampling runs ahead of training, and a step takes complete groups.

With ``max_staleness`` 0 or 1, the groups of one batch are in flight, and a step takes all of them.
Above 1 there are several batches: a step takes the first groups to be complete, the oldest of them
first, and groups in flight continue with the newest weights.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mint.rewards import TooManyFailures
from mint.rl.data.prompts import Data, Draw, Item
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.rollout import Group
from mint.rl.sampling.batch import Batch
from mint.rl.sampling.collector import Collector, cancel_all
from mint.rl.settings.config import RLConfig
from mint.rl.settings.schedules import step_of_draw, temperature_at


@dataclass(eq=False)
class StartedGroup:
    """A group that was started and not taken. Draw and place decide the seeds of its answers."""

    draw: int
    place: str
    item: Item
    version: int  # the newest weights when it was started
    task: asyncio.Task[Group]


class GroupQueue:
    """Starts groups, and hands those that are complete to the steps that train on them."""

    def __init__(self, collector: Collector, data: Data, cfg: RLConfig) -> None:
        self.collector = collector
        self.data = data
        self.cfg = cfg
        self.pending: list[StartedGroup] = []  # in the order in which they were started
        self.taken: list[Batch] = []  # handed out, and not recorded yet
        self._newest: Policy | None = None
        self._policies: dict[int, Policy] = {}
        self._draw: Draw | None = None  # the latest
        self._drawn = 0
        self._width = cfg.batch_size  # prompts of a batch; fewer when the dataset is smaller
        self._interrupted: list[tuple[int, str, Item]] = []  # in flight when the run was ended
        self._stale: list[Group] = []
        self._aborted = 0

    def publish(self, policy: Policy) -> None:
        """Use newer weights from now on."""
        self._newest = policy
        oldest = min((each.version for each in self.pending), default=policy.version)
        kept = {version: p for version, p in self._policies.items() if version >= oldest}
        self._policies = {**kept, policy.version: policy}

    def fill(self, batches: int) -> None:
        """Start batches until so many are in flight."""
        again, self._interrupted = self._interrupted, []
        for draw, place, item in again:
            self._start(draw, place, item)
        while len(self.pending) <= (batches - 1) * self._width:
            self._drawn += 1
            self._draw = self.data.draw(self._drawn)
            items = self._draw.batch(self.cfg.batch_size)
            self._width = len(items)
            self._start_all(items, "")

    async def batch(self, step: int, count: int | None = None) -> Batch:
        """Return ``count`` groups of a step, or all, refilled up to ``max_refills`` times."""
        try:
            self.taken.append(await self._batch(step, count or self._width))
            return self.taken[-1]
        except (Exception, asyncio.CancelledError):
            await cancel_all([each.task for each in self.pending])
            raise

    async def _batch(self, step: int, count: int) -> Batch:
        groups = await self._take(count, step)
        dropped: list[Group] = []
        for round_ in range(1, self.cfg.max_refills + 1):
            useless = [group for group in groups if not self._has_signal(group)]
            fresh = await self._take(len(useless), step, round_)
            if not fresh:
                break
            useful = [group for group in fresh if self._has_signal(group)]
            replaced = useless[: len(useful)]
            dropped += [*replaced, *(group for group in fresh if not self._has_signal(group))]
            gone = {id(group) for group in replaced}
            groups = [*(group for group in groups if id(group) not in gone), *useful]
        stale, self._stale = self._stale, []
        aborted, self._aborted = self._aborted, 0
        policy = self._policy(step)
        return Batch(step, groups, policy, dropped, stale, aborted, self._policies)

    async def _take(self, count: int, step: int, refill: int = 0) -> list[Group]:
        """Return the first ``count`` groups to be complete, or fewer if the dataset has no more."""
        while count:
            self._drop_old(step)
            if (missing := count - len(self.pending)) > 0:
                assert self._draw is not None
                items = self._draw.more(missing)
                self._start_all(items, f"refill {refill}, " if refill else "instead, ")
                if not refill:
                    self.fill(1)  # another pass over a small dataset, when all of it was too old
                count = min(count, len(self.pending))
            complete = [each for each in self.pending if each.task.done()]
            if len(complete) >= count:
                break
            running = [each.task for each in self.pending if not each.task.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        else:
            return []
        taken = complete[:count]
        self.pending = [each for each in self.pending if each not in taken]
        groups = [each.task.result() for each in taken]
        try:
            self.collector.counter.check(groups)
        except TooManyFailures:
            self.taken.append(Batch(step, groups, self._policy(step)))
            raise
        return groups

    def _drop_old(self, step: int) -> None:
        """Drop the groups that are too old for a step, and cancel those that would be."""
        if self.cfg.staleness_rule != "drop":
            return
        oldest = step - 1 - self.cfg.max_staleness
        for each in list(self.pending):
            done = each.task.done() and each.task.exception() is None
            if done and each.task.result().version < oldest:
                self._stale.append(each.task.result())
            elif not done and each.item.prompt is not None and each.version < oldest:
                each.task.cancel()
                self._aborted += 1
            else:
                continue
            self.pending.remove(each)

    def _start_all(self, items: Sequence[Item], place: str) -> None:
        for index, item in enumerate(items):
            self._start(self._drawn, f"{place}{index}", item)

    def _start(self, draw: int, place: str, item: Item) -> None:
        policy, size = self._policy(draw), self.cfg.group_size
        sampled = self.collector.group(policy, item, draw, size, place)
        task = asyncio.ensure_future(sampled)
        self.pending.append(StartedGroup(draw, place, item, policy.version, task))

    def _policy(self, draw: int) -> Policy:
        assert self._newest is not None
        step = step_of_draw(self.cfg, draw, self._newest.version)
        own = replace(self._newest, temperature=temperature_at(self.cfg, step))
        follows = self.cfg.max_staleness > 1
        return replace(own, newest=lambda: self._newest or own) if follows else own

    def _has_signal(self, group: Group) -> bool:
        return group.kind(self.cfg.success_threshold) == "signal"

    @property
    def answered(self) -> int:
        """The number of answers in the groups in flight, complete or not, for the progress line."""
        known = self.collector.answered
        size = self.cfg.group_size
        return sum(size if p.task.done() else known[id(p.item)] for p in self.pending)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the position in the data, and groups in flight."""
        started = [(each.draw, each.place, each.item) for each in self.pending]
        in_flight = [*self._interrupted, *started]
        return {
            "calls": self.data.calls,
            "position": self.data.epochs.state() if self.data.epochs else None,
            "drawn": self._drawn,
            "width": self._width,
            "draw": self._draw.state() if self._draw and in_flight else None,
            "in_flight": [
                {"draw": draw, "place": place, "call": item.call, "identity": item.identity}
                for draw, place, item in in_flight
            ],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state: what was in flight is sampled first, with the same seeds."""
        self._drawn = state.get("drawn", state["step"])
        self._width = state.get("width", self._width)
        lost = state.get("in_flight", [])
        names = [(each["call"], each["identity"]) for each in lost]
        calls, position = state["calls"], state.get("position")
        self._draw, items = self.data.resume(calls, position, state.get("draw"), names)
        self._interrupted = [
            (each["draw"], each["place"], items[name])
            for each, name in zip(lost, names, strict=True)
            if name in items
        ]
