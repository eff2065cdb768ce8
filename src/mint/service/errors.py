"""Errors of requests, and how they are reported to clients."""

import errno
import logging
import os
import uuid
from typing import Literal

from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from starlette.exceptions import HTTPException

from mint.engine.messages import UserError as UserError

log = logging.getLogger(__name__)
Category = Literal["user", "server"]
_DISK_FULL = {"SQLITE_FULL", "53100"}  # error codes of SQLite and PostgreSQL


class ApiError(HTTPException):
    """An HTTP answer other than 200: a status and a message for the person who reads it."""

    def __str__(self) -> str:
        return self.detail


class NotFound(ApiError, UserError):
    """The 404 for an object that does not exist, or that belongs to another user.

    It is a UserError too: an operation that fails for it reports the message in its result.
    """

    def __init__(self, message: str) -> None:
        super().__init__(404, message)


class EngineDied(Exception):
    """The worker process of a base model ended, or never came up. The message names its log."""


DATABASE_FAILED = (OperationalError, InterfaceError, InternalError, NoFreeConnection)
"""What is raised when the database is lost, hangs, is locked, full or damaged."""
EXPLAINED = (UserError, EngineDied, OSError, *DATABASE_FAILED, DataError)
"""Failures that are not bugs of the service."""


def explain(error: Exception, doing: str, where: str | None = None) -> tuple[str, Category]:
    """Return the message and the category of a failure for the client; log it if it is a bug."""
    match error:
        case UserError():
            return str(error), "user"
        case EngineDied():
            return str(error), "server"
        case OSError():
            return readable_os_error(error, doing), "server"
        case MemoryError():
            log.error("%s failed: no memory", doing, exc_info=error)
            more = f" ({error})" if str(error) else ""
            begin = f"{doing[:1].upper()}{doing[1:]} failed: the service has no memory left{more}."
            return f"{begin} Free memory on its machine, or send smaller batches.", "server"
        case DataError():  # PostgreSQL does not store or compare a string with a NUL, for example
            why = f"A value of this request cannot be stored: {error.orig}."
            return f"{why} Correct it and send it again.", "user"
    if isinstance(error, DATABASE_FAILED):
        return database_failed(str(getattr(error, "orig", error)).splitlines()[0]), "server"
    error_id = uuid.uuid4().hex[:8]
    log.error("%s failed (error %s)", doing, error_id, exc_info=error)
    text = f"{doing} failed in the service (error {error_id}): {error}. {where or log_hint()}"
    return text, "server"


def database_failed(why: str) -> str:
    """Describe a failure of the database, with what to do."""
    return (
        f"The service's database failed: {why}. It may be down, locked or damaged, or its disk "
        "full or read-only. Start it, free space or fix its permissions, then try again."
    )


def log_hint() -> str:
    """Return where to read more: the log file, if the environment names one."""
    log_file = os.environ.get("MINT_LOG_FILE")
    return f"The service's log is {log_file}." if log_file else "See the service's own output."


def not_found(what: str, identifier: str, hint: str) -> ApiError:
    """Return the 404 for an object that does not exist, or that belongs to another user."""
    return ApiError(404, f"There is no {what} {identifier!r} for this API key. {hint}")


def is_disk_full(error: Exception) -> bool:
    """Return whether a write failed because the disk or a disk quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    cause = getattr(error, "orig", None)
    codes = (getattr(cause, name, None) for name in ("sqlite_errorname", "sqlstate"))
    return not _DISK_FULL.isdisjoint(codes)


def readable_os_error(error: OSError, doing: str) -> str:
    """Describe a failed file operation, with what to do when the disk is full."""
    if is_disk_full(error):
        return (
            f"The disk of the service is full, so {doing} failed. Everything saved earlier is "
            "intact. Free some space (for example, delete old checkpoints) and try again."
        )
    where = f" ({os.path.basename(os.fsdecode(error.filename))})" if error.filename else ""
    return f"{doing[0].upper()}{doing[1:]} failed: {error.strerror or error}{where}."
