"""Findings of the guard rails and failures of the task's code, reported while a run trains."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from mint.rl.guards import Finding, Guards
from mint.rl.loop.checkpoints import RunCheckpoints
from mint.rl.rollouts.failures import CodeFailure
from mint.rl.runtime.endings import RunStopped
from mint.watch.directory.recorder import RunDirectory


@dataclass(frozen=True)
class Findings:
    """Prints findings, writes them to ``events.jsonl``, and ends the run when one is fatal."""

    guards: Guards
    directory: RunDirectory
    checkpoints: RunCheckpoints

    def check(self, step: int, numbers: dict[str, float]) -> None:
        """Look for trouble in the metrics of a step."""
        found = self.guards.check(numbers)
        for finding in self.guards.news(found):
            self.report(step, finding)
        self.stop_if(found)

    def report(self, step: int, finding: Finding) -> None:
        """Print a finding and keep it as an event."""
        print(f"  {finding}", flush=True)
        self.directory.event("finding", step=step, name=finding.name, text=str(finding))

    def stop_if(self, found: Sequence[Finding]) -> None:
        """Raise :class:`mint.rl.RunStopped` if one of the findings ends the run."""
        fatal = self.guards.fatal(list(found))
        if fatal is not None:
            self.directory.event("stopped", name=fatal.name, text=str(fatal))
            anyway = "To continue regardless, remove it from stop_on."
            raise RunStopped(f"{fatal} {self.checkpoints.where} {anyway}")

    def keep_failure(self, failure: CodeFailure, step: int, sampled_for: str) -> None:
        """Keep a failure of a reward, a tool or a rollout as an event."""
        self.directory.event("failure", step=step, sampled_for=sampled_for, **asdict(failure))
