"""Queues of an engine: jobs by tenant and adapter, and answers that resume."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from mint.engine.adapters.lora import Adapter
from mint.engine.sampling.sequence import Job, Prefill


@dataclass
class _Tenant:
    queues: OrderedDict[Adapter | None, deque[Job]] = field(default_factory=OrderedDict)
    resuming: deque[Prefill] = field(default_factory=deque)


class WaitingJobs:
    """The queues of all tenants. Tenants take turns, and so do the adapters of each."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenants(self) -> list[str]:
        """Return the waiting tenants, the least recently served first."""
        return list(self._tenants)

    def add(self, job: Job, at_front: bool = False) -> None:
        """Queue a job behind the others of its tenant and adapter, or before them."""
        tenant = self._tenants.setdefault(job.tenant, _Tenant())
        queue = tenant.queues.setdefault(job.adapter, deque())
        queue.insert(0 if at_front else len(queue), job)

    def add_resuming(self, prefill: Prefill) -> None:
        """Queue an answer that lost its blocks, ahead of its tenant's other work."""
        self._tenants.setdefault(prefill.tenant, _Tenant()).resuming.appendleft(prefill)

    def resuming(self, tenant: str) -> deque[Prefill]:
        """Return the answers of a tenant that wait to resume."""
        return self._tenants[tenant].resuming

    def all_resuming(self) -> list[deque[Prefill]]:
        """Return the answers that wait to resume, of each tenant that has any."""
        return [tenant.resuming for tenant in self._tenants.values() if tenant.resuming]

    def queue(self, tenant: str) -> tuple[Adapter | None, deque[Job]] | None:
        """Return the next queue of a tenant and its adapter, or None if it has no jobs."""
        queues = self._tenants[tenant].queues
        return next(iter(queues.items())) if queues else None

    def next_queue(self, tenant: str) -> None:
        """Move to the next adapter of a tenant, and remove the queue if it is empty."""
        queues = self._tenants[tenant].queues
        adapter, queue = next(iter(queues.items()))
        if queue:
            queues.move_to_end(adapter)
        else:
            del queues[adapter]

    def served(self, tenant: str) -> None:
        """Move a tenant behind the others, or remove it if nothing of it waits."""
        waiting = self._tenants[tenant]
        if waiting.queues or waiting.resuming:
            self._tenants.move_to_end(tenant)
        else:
            del self._tenants[tenant]

    def cancel(self, job: Job) -> None:
        """Remove a job's answers that wait to resume; the job itself is skipped in its turn."""
        waiting = self._tenants.get(job.tenant)
        if waiting is not None and waiting.resuming:
            kept = (p for p in waiting.resuming if p.sequence and p.sequence.job is not job)
            waiting.resuming = deque(kept)
            if not (waiting.queues or waiting.resuming):
                del self._tenants[job.tenant]

    def jobs(self) -> Iterator[Job]:
        """Yield every job that waits."""
        for tenant in self._tenants.values():
            yield from (p.sequence.job for p in tenant.resuming if p.sequence is not None)
            for queue in tenant.queues.values():
                yield from queue
