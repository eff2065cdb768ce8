"""The first tables: keys, sessions, runs, samplers, checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(), nullable=False, unique=True),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("user", sa.String(), nullable=False, index=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("last_seen", TIME, nullable=False),
        sa.Column("sdk_version", sa.String(), nullable=False),
        sa.Column("display_name", sa.String()),
        sa.Column("project_id", sa.String()),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("finish", sa.String()),
        sa.Column("finish_detail", sa.String()),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("session_id", sa.String(), nullable=False, index=True),
        sa.Column("user", sa.String(), nullable=False, index=True),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("lora", sa.JSON(), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("last_request_at", TIME, nullable=False),
    )
    op.create_table(
        "samplers",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("session_id", sa.String(), nullable=False, index=True),
        sa.Column("user", sa.String(), nullable=False, index=True),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("model_path", sa.String()),
        sa.Column("run_id", sa.String()),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("run_id", sa.String(), nullable=False, index=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False, index=True),
        sa.Column("seq_id", sa.BigInteger(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("lora", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("public", sa.Boolean(), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.UniqueConstraint("run_id", "kind", "name"),
    )
