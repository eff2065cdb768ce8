"""Tokens that keys and runs used, by hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("key", sa.String(), primary_key=True),
        sa.Column("run_id", sa.String(), primary_key=True),
        sa.Column("hour", TIME, primary_key=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("tokens_sampled", sa.BigInteger(), nullable=False),
        sa.Column("tokens_trained", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", TIME, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("usage")
