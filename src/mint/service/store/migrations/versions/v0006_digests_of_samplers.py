"""Samplers have the digest of their weights; for those that exist it is noted at the next use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("samplers") as samplers:
        samplers.add_column(sa.Column("digest", sa.String(64)))


def downgrade() -> None:
    with op.batch_alter_table("samplers") as samplers:
        samplers.drop_column("digest")
