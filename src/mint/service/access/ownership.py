"""Ownership: who may read and change what.

An object belongs to the user whose key created it, and to other users it does not exist. The one
exception is a public checkpoint: every user may read it, and what its run was trained from.
"""

from sqlalchemy import or_, select

from mint.service.store.database import CheckpointRow, Condition, RunRow, Store


def may_read(checkpoint: CheckpointRow, user: str) -> bool:
    """Return whether a user may read a checkpoint."""
    return checkpoint.user == user or checkpoint.public


def readable_checkpoints(run: RunRow, user: str) -> list[Condition]:
    """Return the conditions that select those checkpoints of a run that a user may read."""
    of_run = CheckpointRow.run_id == run.id
    return [of_run] if run.user == user else [of_run, CheckpointRow.public.is_(True)]


def find_readable_run(store: Store, run_id: str, user: str) -> RunRow | None:
    """Return a run of the user's own, or another's with a public checkpoint."""
    is_public = CheckpointRow.public.is_(True)
    public = select(CheckpointRow.run_id).where(CheckpointRow.run_id == run_id, is_public)
    readable = or_(RunRow.user == user, RunRow.id.in_(public))
    with store.transaction() as session:
        return session.scalar(select(RunRow).where(RunRow.id == run_id, readable))
