"""How a run ends before its last step.

Each of these says all there is to say. A program can catch them like any other exception; a script
that does not ends with their text alone, without a traceback, because they are ``SystemExit`` too.
They are raised where no event loop runs: inside one, ``SystemExit`` would tear it down.
"""

from __future__ import annotations


class Interrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C, after what was done has been saved. A script ends with 130, as shells expect."""

    def __init__(self) -> None:
        super().__init__(130)


class RunStopped(SystemExit, RuntimeError):
    """A guard ended the run. The text says why and where the last good checkpoint is."""


class ServiceLost(SystemExit, RuntimeError):
    """The service is gone. The text says what was lost and how to go on."""


class CheckpointGone(SystemExit, RuntimeError):
    """The checkpoint that a run would continue from is not on the service any more."""
