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

    def add(self, tenant: str, operation: TrainingOperation) -> None:
        """Begin an operation, after those of the same tenant."""
        self._tenants.setdefault(tenant, deque()).append(operation)

    def next(self) -> TrainingOperation:
        """Return the operation whose turn it is, and give the turn to the next."""
        tenant, operations = next(iter(self._tenants.items()))
        operation = operations[0]
        operations.rotate(-1)
        self._tenants.move_to_end(tenant)
        return operation

    def remove(self, operation: TrainingOperation) -> None:
        """Forget an operation that is done."""
        for tenant, operations in list(self._tenants.items()):
            if operation in operations:
                operations.remove(operation)
                if not operations:
                    del self._tenants[tenant]
