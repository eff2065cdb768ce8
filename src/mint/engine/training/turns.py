"""Training operations in progress: one pass at a time, tenants in turn, and the runs of each."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from mint.engine.messages import Call
from mint.engine.training.trainer import Steps


@dataclass(frozen=True)
class TrainingOperation:
    """A call that takes several passes."""

    call: Call
    tenant: str
    run_id: str
    steps: Steps[Any]


class TrainingTurns:
    """The order of training operations. A small one does not wait for the end of another tenant's
    large one.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, deque[TrainingOperation]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def has(self, run_id: str | None) -> bool:
        """Return whether an operation of this run is in progress."""
        return any(o.run_id == run_id for line in self._tenants.values() for o in line)

    def add(self, operation: TrainingOperation) -> None:
        """Queue an operation after those of the same tenant."""
        self._tenants.setdefault(operation.tenant, deque()).append(operation)

    def next(self) -> TrainingOperation:
        """Take the operation whose turn it is. It is added again if it is not done after a pass."""
        tenant, operations = self._tenants.popitem(last=False)
        operation = operations.popleft()
        if operations:
            self._tenants[tenant] = operations
        return operation
