"""Sessions have the key that created them, whose quota they count for."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    with op.batch_alter_table("sessions") as sessions:
        sessions.add_column(sa.Column("key", sa.String(), nullable=False, server_default=""))
        sessions.create_index("ix_sessions_key", ["key"])
