"""Exceptions that end a run before its last step.

Their messages are complete. A program can catch them like any other exception. A script that does
not catch them ends with the message alone, without a traceback, because they are also
``SystemExit``. They are raised outside the event loop, which ``SystemExit`` would stop.
"""

from mint.rewards import TooManyFailures
from mint.rl.runtime.connection import Ended, NoAnswer


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after completed work was saved. A script ends with 130 or 143."""

    def __init__(self, code: int = 130) -> None:
        super().__init__(code)


class RunStopped(SystemExit, RuntimeError):
    """A guard ended the run. The text says why and where the last good checkpoint is."""


class RewardsFailed(SystemExit, TooManyFailures):
    """Too many rewards failed. The text says how, and where the last checkpoint is."""


class ServiceLost(SystemExit, RuntimeError):
    """The service is gone. The text says what was lost and how to resume."""


class CheckpointGone(SystemExit, RuntimeError):
    """The checkpoint that a run would continue from is not on the service any more."""


def lost(error: Exception, url: str, step: int) -> ServiceLost:
    """Return the exception for a lost service, of a run that was saved after a step."""
    what = f"Work after step {step} is lost." if step else "Nothing was saved yet."
    said = str(error) if isinstance(error, NoAnswer) else f"{url} cannot be reached: {error}"
    if isinstance(error, Ended):
        return ServiceLost(f"{said} {what} {resume_hint(step)}")
    return ServiceLost(
        f"{said} {what} Restart the service with the same home folder. {resume_hint(step)} "
        "service_timeout sets how long a run waits for it."
    )


def resume_hint(step: int) -> str:
    """Say how to resume a run that was saved after a step.

    >>> resume_hint(12), resume_hint(0)
    ('The same command resumes after step 12.', 'The same command starts again.')
    """
    return f"The same command {f'resumes after step {step}' if step else 'starts again'}."
