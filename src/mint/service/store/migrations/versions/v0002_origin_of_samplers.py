"""Samplers know the operation or checkpoint version they come from, and count their clients."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("samplers") as samplers:
        samplers.add_column(sa.Column("seq_id", sa.BigInteger()))
        samplers.add_column(sa.Column("version", sa.String()))
        samplers.add_column(sa.Column("clients", sa.Integer(), nullable=False, server_default="0"))
