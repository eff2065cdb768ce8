"""Keys have quotas; runs and samplers know the key that made them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

KEYS = sa.table("api_keys", sa.column("name"), sa.column("user"))


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as keys:
        keys.add_column(sa.Column("quota", sa.JSON(), nullable=False, server_default="{}"))
    for name in ("runs", "samplers"):
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("key", sa.String(), nullable=False, server_default=""))
        rows = sa.table(name, sa.column("key"), sa.column("user"))
        of_user = sa.select(sa.func.min(KEYS.c.name)).where(KEYS.c.user == rows.c.user)
        only_key = of_user.having(sa.func.count() == 1).scalar_subquery()
        op.execute(rows.update().values(key=sa.func.coalesce(only_key, rows.c.user)))
        op.create_index(f"ix_{name}_key", name, ["key"])
