"""Retention rules: which checkpoints may be deleted. Those in use are kept."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase

from sqlalchemy import func, select

from mint.service.checkpoints.storage import unexpired
from mint.service.store.database import (
    CheckpointRow,
    Condition,
    RunRow,
    SamplerRow,
    SessionRow,
    Store,
    now,
)


@dataclass(frozen=True)
class Rule:
    """Delete old checkpoints, except the newest of each run and kind, and some names."""

    older_than_s: float
    keep_last: int
    keep: tuple[str, ...]


def find_old(
    store: Store,
    rule: Rule,
    conditions: Sequence[Condition],
    idle_s: float,
    runs_here: Collection[str],
    paths_here: Collection[str],
) -> list[CheckpointRow]:
    """Return the checkpoints that a rule deletes among those that fit, the oldest first.

    It never selects public checkpoints, those that a sampler in use was created from, and the
    newest of each kind of a run in use. This service has the runs and checkpoint paths ``here``
    open; use by other services with the same database is known from their sessions, which are
    silent for less than ``idle_s``.
    """
    newest_first = func.row_number().over(
        partition_by=(CheckpointRow.run_id, CheckpointRow.kind),
        order_by=CheckpointRow.id.desc(),  # the order of creation, independent of the clock
    )
    ranks = select(CheckpointRow.id, newest_first.label("rank")).where(unexpired()).subquery()
    old = (
        select(CheckpointRow, ranks.c.rank)
        .join(ranks, ranks.c.id == CheckpointRow.id)
        .where(
            ranks.c.rank > rule.keep_last,
            CheckpointRow.created_at <= now() - timedelta(seconds=rule.older_than_s),
            CheckpointRow.public.is_(False),
            *conditions,
        )
        .order_by(CheckpointRow.id)
    )
    alive = select(SessionRow.id).where(
        SessionRow.finish.is_(None), SessionRow.last_seen > now() - timedelta(seconds=idle_s)
    )
    runs_elsewhere = select(RunRow.id).where(RunRow.session_id.in_(alive))
    paths_elsewhere = select(SamplerRow.model_path).where(SamplerRow.session_id.in_(alive))
    with store.transaction() as session:
        found = session.execute(old).all()
        runs = {*runs_here, *session.scalars(runs_elsewhere)}
        paths = {*paths_here, *session.scalars(paths_elsewhere)}
    return [
        row
        for row, rank in found
        if not any(fnmatchcase(row.name, pattern) for pattern in rule.keep)
        and not (rank == 1 and row.run_id in runs)
        and row.uri not in paths
    ]
