"""Keys have a scope and may expire; those that exist keep all rights."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as keys:
        keys.add_column(sa.Column("scope", sa.String(), nullable=False, server_default="admin"))
        keys.add_column(sa.Column("expires_at", TIME))
        keys.add_column(sa.Column("last_used_at", TIME))
