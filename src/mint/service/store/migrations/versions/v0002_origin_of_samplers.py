"""Samplers know the operation or checkpoint version they come from, and count their clients."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("samplers") as samplers:
        samplers.add_column(sa.Column("seq_id", sa.BigInteger()))
        samplers.add_column(sa.Column("version", sa.String()))
        samplers.add_column(sa.Column("clients", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("samplers") as samplers:
        samplers.drop_column("clients")
        samplers.drop_column("version")
        samplers.drop_column("seq_id")
