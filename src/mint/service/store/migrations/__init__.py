"""Migrations of the tables, one for each version."""

import fcntl
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

_LOCK = 0x6D696E74


def migrate(engine: Engine, lock_file: Path, version: str) -> None:
    """Upgrade the tables to a version, one process at a time."""
    config = _config()
    with open(lock_file, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("set local statement_timeout = 0"))
                connection.execute(text("select pg_advisory_xact_lock(:n)"), {"n": _LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, version)


def versions(engine: Engine) -> tuple[str | None, list[str]]:
    """Return the version of the tables, and all versions that this code knows, newest first."""
    scripts = ScriptDirectory.from_config(_config())
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    return current, [script.revision for script in scripts.walk_revisions()]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
