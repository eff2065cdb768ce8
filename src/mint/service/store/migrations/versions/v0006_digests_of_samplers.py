"""Samplers have the digest of their weights; for those that exist it is noted at the next use."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("samplers") as samplers:
        samplers.add_column(sa.Column("digest", sa.String(64)))
