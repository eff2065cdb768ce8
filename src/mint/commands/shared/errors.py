"""Errors of commands: a message and an exit code; a traceback only for defects."""

import re
import sys
import traceback
from collections.abc import Callable, Mapping

from mint.config_error import ConfigError

INTERRUPTED, MISTAKE, FAILED = 130, 2, 1


def exit_code(work: Callable[[], int]) -> int:
    """Run a command and return its exit code. A user's mistake gives one message."""
    try:
        return work()
    except KeyboardInterrupt as error:
        return int(getattr(error, "code", INTERRUPTED))  # of a run: also 143, after SIGTERM
    except Exception as error:
        return report_error(error)


def report_error(error: Exception) -> int:
    """Print an error, and return the exit code for it."""
    code = MISTAKE if isinstance(error, ConfigError) else _exit_code(error)
    if code is None:
        traceback.print_exception(error)
    else:
        print(f"mint: {describe_error(error)}", file=sys.stderr)
    return code or FAILED


def describe_error(error: Exception) -> str:
    """Return an error's message, without what the client adds to the service's."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("detail"), str):
        return str(body["detail"])
    text = re.sub(r"^Request failed: | for self\.request_id=.*", "", str(error), flags=re.DOTALL)
    return text or type(error).__name__


def _exit_code(error: Exception) -> int | None:
    """Return 2 for a user's mistake, 1 for a failure, None for a defect."""
    import mint
    from mint.catalog import ModelNotFound
    from mint.embedded import EmbeddedServiceError
    from mint.rewards import SandboxUnavailable, TooManyFailures
    from mint.rewards.tasks import GymUnavailable
    from mint.rl import CheckpointGone, RunStopped, ServiceLost
    from mint.rl.data.prompts import NotEnoughData
    from mint.rl.evaluation.endpoint import EndpointFailed
    from mint.rl.runtime.connection import NoAnswer
    from mint.watch.directory.recorder import RunDirectoryBusy

    mistakes = (ModelNotFound, CheckpointGone, NotEnoughData, RunDirectoryBusy)
    missing = (GymUnavailable, SandboxUnavailable, mint.NotFoundError, mint.BadRequestError)
    lost = (ServiceLost, NoAnswer, EndpointFailed, EmbeddedServiceError, mint.TinkerError)
    if isinstance(error, mistakes + missing):
        return MISTAKE
    if isinstance(error, mint.RequestFailedError) and error.category == "user":
        return MISTAKE
    ended = (RunStopped, TooManyFailures, BrokenPipeError)
    return FAILED if isinstance(error, ended + lost) else None
