"""Tokens that keys and runs used, by hour."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

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
