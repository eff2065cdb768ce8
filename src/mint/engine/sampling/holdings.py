"""The resources that each tenant holds in an engine, and its fair share.

An engine divides three resources: rows of the decoding batch, blocks of the key-value pool and
slots for adapters. A tenant's level is the largest fraction that it holds of any of them. Its fair
share is an equal fraction among all tenants that hold something or wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mint.engine.adapters.lora import MAX_SLOTS, Adapter
from mint.engine.sampling.sequence import Prefill, Sequence


@dataclass
class Holding:
    """The resources of one tenant."""

    rows: int = 0  # answers that decode, or resume as soon as their tokens are in the pool again
    starting: int = 0  # answers whose prompt is in the pool or being computed
    blocks: int = 0
    adapters: set[Adapter | None] = field(default_factory=set)


class Holdings:
    """The resources of all tenants at this moment, counted from the scheduler's lists."""

    def __init__(
        self,
        max_rows: int,
        max_blocks: int,
        running: Iterable[Sequence],
        prefills: Iterable[Prefill],
        waiting: Iterable[str] = (),
    ) -> None:
        self._max_rows, self._max_blocks = max_rows, max_blocks
        self._tenants: dict[str, Holding] = {}
        self.claimed = 0  # rows, by answers that decode or are about to start
        for tenant in waiting:
            self.of(tenant)
        for sequence in running:
            holding = self.of(sequence.job.tenant)
            holding.rows += 1
            holding.blocks += len(sequence.blocks)
            holding.adapters.add(sequence.job.adapter)
            self.claimed += 1
        for prefill in prefills:
            self.add(prefill)

    def of(self, tenant: str) -> Holding:
        """Return what one tenant has."""
        return self._tenants.setdefault(tenant, Holding())

    def add(self, prefill: Prefill) -> None:
        """Count a prompt, and the answers that will start from it."""
        holding = self.of(prefill.tenant)
        holding.blocks += len(prefill.blocks)
        if prefill.sequence is not None:
            holding.rows += 1
            holding.adapters.add(prefill.adapter)
            self.claimed += 1
            return
        most = max(self._max_rows // 4, 1)  # one job alone does not keep all others out
        starting = 0
        for job in prefill.jobs:
            starting += min(len(job.sequences) - job.started, most)
            if starting >= self._max_rows:  # thousands of jobs may share a prompt
                break
        holding.starting += starting
        self.claimed += starting

    @property
    def fair_rows(self) -> float:
        """A tenant's fair share of the rows, at least one."""
        return max(self._max_rows * self._share, 1)

    @property
    def _fair_slots(self) -> float:
        return max(MAX_SLOTS * self._share, 1)

    @property
    def _share(self) -> float:
        return 1 / max(len(self._tenants), 1)

    def level(self, tenant: str) -> float:
        """Return the largest fraction of any resource that a tenant holds."""
        holding = self.of(tenant)
        return max(
            holding.rows / self._max_rows,
            holding.blocks / self._max_blocks,
            len(holding.adapters) / MAX_SLOTS,
        )

    def claim(self, tenant: str) -> float:
        """Return the level including the rows of answers that are about to start."""
        holding = self.of(tenant)
        return max(self.level(tenant), (holding.rows + holding.starting) / self._max_rows)

    def may_claim(self, tenant: str) -> bool:
        """Return whether one more answer of a tenant is within its share of rows."""
        holding = self.of(tenant)
        return holding.rows + holding.starting + 1 <= self.fair_rows

    def is_owed(self, tenant: str, rows: int = 0, blocks: int = 0) -> bool:
        """Return whether a tenant stays within its share with this much more."""
        holding = self.of(tenant)
        return (
            holding.rows + rows <= self.fair_rows
            and holding.blocks + blocks <= self._max_blocks * self._share
        )

    def is_owed_slot(self, tenant: str) -> bool:
        """Return whether one more adapter of a tenant is within its share."""
        return len(self.of(tenant).adapters) + 1 <= self._fair_slots

    def largest(self) -> str:
        """Return the tenant with the highest level; of equal ones, the newest."""
        return max(reversed(self._tenants), key=self.level)

    def largest_above_share(self) -> str | None:
        """Return the tenant with the highest level, if that is more than its share."""
        tenant = self.largest()
        has_more_slots = len(self.of(tenant).adapters) > self._fair_slots
        return tenant if has_more_slots or not self.is_owed(tenant) else None

    def most_slots_above_share(self) -> str | None:
        """Return the tenant with the most adapters, if these are more than its share."""
        tenant = max(self._tenants, key=lambda name: len(self.of(name).adapters))
        return tenant if len(self.of(tenant).adapters) > self._fair_slots else None
