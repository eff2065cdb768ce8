"""Errors of requests, and how they reach the client."""

import errno
import os

from sqlalchemy.exc import OperationalError

from mint.engine.messages import UserError as UserError

_DISK_FULL = "53100"
"""PostgreSQL's code."""


class ApiError(Exception):
    """An HTTP answer other than 200: a status and one text for the person who reads it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class EngineDied(Exception):
    """The worker process of a base model ended, or never came up. Its text names the log."""


def log_hint() -> str:
    """Say where to read more: the log file, when the starter of the service named one."""
    log_file = os.environ.get("MINT_LOG_FILE")
    return f"The service's log is {log_file}." if log_file else "See the service's own output."


def not_found(what: str, identifier: str, hint: str) -> ApiError:
    """The same answer for an unknown object and for one of another user."""
    return ApiError(404, f"There is no {what} {identifier!r} for this API key. {hint}")


def is_disk_full(error: OSError | OperationalError) -> bool:
    """Say whether a write failed because the disk, or the part of it that is ours, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    sqlite, postgres = (
        getattr(error.orig, name, None) for name in ("sqlite_errorname", "sqlstate")
    )
    return sqlite == "SQLITE_FULL" or postgres == _DISK_FULL


def readable_os_error(error: OSError, doing: str) -> str:
    """A sentence about a failed file operation, with what to do when the disk is full."""
    if is_disk_full(error):
        return (
            f"The disk of the service is full, so {doing} failed. Everything saved earlier is "
            "intact. Free some space (for example, delete old checkpoints) and try again."
        )
    where = f" ({os.path.basename(os.fsdecode(error.filename))})" if error.filename else ""
    return f"{doing[0].upper()}{doing[1:]} failed: {error.strerror or error}{where}."


def readable_database_error(error: OperationalError) -> str:
    """A sentence about a database that does not answer, with what to do about it."""
    why = str(error.orig).splitlines()[0]
    return (
        f"The service's database failed: {why}. It may be down, or its disk full or "
        "read-only. Start it, free space or fix its permissions, then try again."
    )
