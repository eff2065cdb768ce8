"""Waiting for the service: what Ctrl-C, a silent service and failing rewards do to a run."""

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import mint
from mint.rewards import TooManyFailures
from mint.rl.groups.collect import StepFailed
from mint.rl.loop.checkpoints import RunCheckpoints
from mint.rl.recording.step import Recording
from mint.rl.runtime.connection import NoAnswer, ServiceMonitor
from mint.rl.runtime.endings import RewardsFailed, lost
from mint.rl.runtime.event_loop import Loop
from mint.rl.runtime.interruption import Interruption
from mint.watch.directory.recorder import RunDirectory

Result = TypeVar("Result")


class RunLoop:
    """Runs the coroutines of a run, and turns what ends them early into an end of the run."""

    def __init__(
        self,
        interruption: Interruption,
        directory: RunDirectory,
        checkpoints: RunCheckpoints,
        recording: Recording,
    ) -> None:
        self.interruption = interruption
        self.directory = directory
        self.checkpoints = checkpoints
        self.recording = recording
        self.monitor: ServiceMonitor | None = None  # set when the service's address is known
        self.half_done = False  # the weights are those of no step: one is being trained on
        self.reported = False  # that Ctrl-C waits for the end of a step
        self._loop = Loop(interruption)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of work that Ctrl-C cancels, unless a step has been trained on in
        part: then it waits for the end of that step."""
        if self.half_done:
            return self.finish_first(work)
        try:
            self.interruption.check()
        except KeyboardInterrupt:
            work.close()
            raise
        return self.run(work)

    def finish_first(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of work that Ctrl-C waits for, so that a step is done or not begun."""
        return self.run(work, self._report_waiting)

    def _report_waiting(self) -> None:
        if not self.reported:
            self.reported = True
            print(
                "Interrupted: finishing this step. Press Ctrl-C again to stop immediately.",
                flush=True,
            )

    def run(
        self, work: Coroutine[Any, Any, Result], on_press: Callable[[], None] | None = None
    ) -> Result:
        """Return the result of some work; ``on_press`` is what the first Ctrl-C calls instead of
        cancelling it."""
        assert self.monitor is not None
        try:
            return self._loop.run(self.monitor.during(work), on_press)
        except TooManyFailures as error:
            if isinstance(error, StepFailed) and error.sampled_for == "training":
                self.recording.sampled(error.batch)  # to be written at the end
            self.directory.event("stopped", name="reward_errors", text=str(error))
            raise RewardsFailed(f"{error} {self.checkpoints.where}") from error
        except (NoAnswer, mint.APIConnectionError) as error:
            raise lost(error, self.monitor.url, self.saved_step) from error
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()  # Ctrl-C came before it began

    @property
    def saved_step(self) -> int:
        """The step after which the same command would resume."""
        return int((self.directory.state() or {"step": 0})["step"])

    def close(self) -> None:
        """Cancel what is left, and close the loop."""
        self._loop.close()
