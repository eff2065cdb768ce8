"""A run: its clients, data and files, and the steps that a loop such as ``grpo`` is made of.

A run that was interrupted resumes from its last checkpoint, with the same data, schedules,
curriculum and optimizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import mint
from mint import types
from mint.rewards import TooManyFailures
from mint.rl.data.prompts import Data
from mint.rl.datums.datum import with_weights
from mint.rl.datums.masking import unmasked
from mint.rl.evaluation.evaluator import Holdout
from mint.rl.evaluation.scores import Evaluation, advice, closing_lines, evaluations_in
from mint.rl.guards import Finding, Guards, masked_loss, stability_advice
from mint.rl.loop.checkpoints import RunCheckpoints
from mint.rl.loop.clients import reference, training_client
from mint.rl.loop.metrics import measure, staleness
from mint.rl.loop.progress import step_line
from mint.rl.loop.stages import weights_before
from mint.rl.recording.directory import open_directory, write_service
from mint.rl.recording.report import AnalysisWriter, RewardLog
from mint.rl.recording.tables import rollout_rows
from mint.rl.rollouts.failures import CodeFailure, FailureLog
from mint.rl.rollouts.scoring import FailureCounter
from mint.rl.runtime.connection import NoAnswer, ServiceMonitor, connect
from mint.rl.runtime.endings import Interrupted, RewardsFailed, RunStopped, lost, resume_hint
from mint.rl.runtime.interruption import Interruption
from mint.rl.runtime.threads import to_thread
from mint.rl.sampling.batch import Batch, merge_batches
from mint.rl.sampling.collector import Collector
from mint.rl.sampling.queue import GroupQueue
from mint.rl.settings.config import RLConfig
from mint.watch.directory.recorder import METRICS, read_rows

INTERRUPTED = (KeyboardInterrupt, asyncio.CancelledError)


@contextlib.asynccontextmanager
async def open_run(
    adapter: Any,
    cfg: RLConfig | None = None,
    service: mint.ServiceClient | None = None,
    interruption: Interruption | None = None,
) -> AsyncIterator[Run]:
    """Begin or resume a run, and close it at its end.

    Ctrl-C, a lost service and rewards that fail end it with one of :mod:`mint.rl.runtime.endings`.
    """
    run = Run(adapter, cfg or RLConfig.from_env(), interruption or Interruption())
    error: BaseException | None = None
    try:
        run.service = await to_thread(mint.ServiceClient) if service is None else service
        run.monitor = ServiceMonitor(run.service, run.cfg.service_timeout)
        await run.monitor.reach()
        async with run.monitor.watching():
            await run._begin()
            yield run
    except BaseException as caught:
        error = caught
    await run._end(error)


class Run:
    """One training run and everything it needs; :func:`open_run` makes one."""

    service: mint.ServiceClient
    monitor: ServiceMonitor

    def __init__(self, adapter: Any, cfg: RLConfig, interruption: Interruption) -> None:
        cfg.check()
        self.adapter = adapter
        self.cfg = cfg
        self.directory = open_directory(cfg, adapter)
        self.done = 0
        self.final: str | None = None
        self.interruption = interruption
        self.guards = Guards(cfg)
        self.failure_counter = FailureCounter(cfg.max_reward_failures)
        self.checkpoints = RunCheckpoints(cfg.checkpoint_every, cfg.keep_every)
        self.monitors: list[Callable[[Batch], None]] = []  # called with the batch of every step
        self._analyst: AnalysisWriter | None = None
        self._half_done = False  # a step is partly trained: the weights match no step
        self._failures = FailureLog(self._keep_failure)

    async def _begin(self) -> None:
        cfg, state = self.cfg, self.directory.state()
        self.checkpoints.load(state["checkpoints"] if state else [])
        await connect(self.service)
        folder, latest = self.directory.path, self.checkpoints.latest
        write_service(folder, self.monitor.url)
        about = {"task": self.directory.config()["task"], "run_dir": str(folder.resolve())}
        self.client = await training_client(self.service, cfg, latest, about)
        self.tokenizer = await to_thread(self.client.get_tokenizer)
        self._text = cache(lambda token: str(self.tokenizer.decode([token])))
        self.data = Data(self.adapter, self.tokenizer, cfg)
        self._held_out = self.data.holdout() if cfg.eval_every else []
        self._holdout = Holdout()
        collector = Collector(self.adapter, cfg, self.failure_counter, self._failures)
        self.queue = GroupQueue(collector, self.data, cfg)
        self.reference = await reference(self.service, cfg)
        print(f"Model: {cfg.base_model}, run directory: {folder}", flush=True)
        for note in cfg.notes(converses=not hasattr(self.adapter, "make_prompt")):
            print(f"  {note}", flush=True)
        order = self.data.decide_order()
        print(order, flush=True)
        if state:
            self.done, self.final = state["step"], state["final"]
            self.guards.load(state["guards"])
            self.failure_counter.load(state["ledger"])
            self._holdout.left_out = state.get("left_out")
            if self.data.curriculum is not None:
                self.data.curriculum.load(state["curriculum"])
            self.queue.load(state)
            if self.done < cfg.steps:
                print(f"Resuming after step {self.done}.", flush=True)
                self.directory.event("resumed", step=self.done)
        else:
            kind = "shuffled" if self.data.epochs else "first"
            self.directory.event("data", order=kind, text=order)
            if cfg.eval_every:
                numbers = (await self._evaluated(0)).metrics()
                self.guards.begin(numbers)
                self.directory.metrics({"step": 0, **numbers})
        if cfg.log_rewards:
            self.monitors.append(RewardLog(folder))
        if cfg.save_reward_analysis:
            self._analyst = AnalysisWriter(folder)
            self.monitors.append(self._analyst.see)
        self._position = self.queue.state()
        self._since = time.monotonic()
        self._began = self._since - (state["elapsed"] if state else 0.0)

    # ---- what a loop calls ----

    def steps(self) -> Iterator[int]:
        """Yield the steps that are still to be done. Ctrl-C during a step ends them."""
        while self.done < self.cfg.steps:
            self.interruption.check()
            yield self.done + 1

    def edit_datums(self, batch: Batch, datums: Sequence[types.Datum]) -> list[types.Datum]:
        """Return the datums of a batch as the task edits them, checked and ready to be trained on.

        From here to the end of ``record`` Ctrl-C waits.
        """
        edit = getattr(self.adapter, "edit_datums", list)
        edited = [with_weights(datum) for datum in edit(list(datums))]
        wrong = unmasked(edited, batch.groups)
        batch.metrics |= {"datums": float(len(edited)), "datums/unmasked": float(len(wrong))}
        found = masked_loss(batch.metrics, self.guards)
        self._stop_if(Finding("masked_loss", *each) for each in found)
        self.interruption.answer, self._half_done = "finish", True
        return edited

    async def record(self, parts: Sequence[Batch]) -> None:
        """Record a step that was trained on in these parts; evaluate and save when due."""
        batch = merge_batches(parts)
        for refused in (update.refused for update in batch.updates if update.refused):
            finding = Finding("not_finite", refused, stability_advice(self.cfg))
            self._report(batch.step, finding)
            self._stop_if([finding])
        try:
            await self._record(batch)
        finally:  # also of a step at which a guard rail ends the run
            for monitor in self.monitors:
                monitor(batch)

    async def _record(self, batch: Batch) -> None:
        cfg, step = self.cfg, batch.step
        numbers = measure(batch.everything, cfg.success_threshold) | staleness(batch)
        numbers |= batch.metrics
        numbers["groups/refilled"] = float(len(batch.dropped))
        if (curriculum := self.data.curriculum) is not None:
            numbers |= curriculum.learn_from(batch.everything, cfg.success_threshold, step)
        last = step == cfg.steps
        evaluation = None
        if cfg.eval_every and (last or step % cfg.eval_every == 0):
            evaluation = await self._evaluated(step)
            numbers |= evaluation.metrics()
        numbers["time/total"] = time.monotonic() - self._began
        self.queue.taken.clear()
        self.directory.write_step(rollout_rows(batch, self._text), {"step": step, **numbers})
        seconds = time.monotonic() - self._since
        print(step_line(step, cfg.steps, numbers, seconds), flush=True)
        if (own_line := getattr(self.adapter, "evaluate", None)) is not None:
            rewards = [reward for group in batch.everything for reward in group.rewards]
            own_line(step, rewards, sum(len(update.datums) for update in batch.updates))
        found = self.guards.check(numbers)
        for finding in self.guards.news(found):
            self._report(step, finding)
        self._stop_if(found)
        self.done, self.final = step, None
        self._position, self._half_done = self.queue.state(), False
        if last or evaluation or self.checkpoints.due(step) or self.interruption.presses:
            await self._saved(evaluation)
        self.interruption.answer = "cancel"
        self._since = time.monotonic()

    def _report(self, step: int, finding: Finding) -> None:
        """Print a finding of a guard, and keep it as an event."""
        print(f"  {finding}", flush=True)
        self.directory.event("finding", step=step, name=finding.name, text=str(finding))

    def _stop_if(self, found: Iterable[Finding]) -> None:
        """Raise :class:`mint.rl.RunStopped` if one of the findings ends the run."""
        fatal = self.guards.fatal(found)
        if fatal is not None:
            self.directory.event("stopped", name=fatal.name, text=str(fatal))
            anyway = "To continue regardless, remove it from stop_on."
            raise RunStopped(f"{fatal} {self.checkpoints.where} {anyway}")

    def _keep_failure(self, failure: CodeFailure, step: int, sampled_for: str) -> None:
        self.directory.event("failure", step=step, sampled_for=sampled_for, **asdict(failure))

    # ---- evaluation, checkpoints, the end ----

    async def _evaluated(self, step: int) -> Evaluation:
        client = await weights_before(self.client, step + 1)
        found = await self._holdout.evaluate(
            self.adapter, self.cfg, self._held_out, client, self.tokenizer, self._failures
        )
        print(f"Step {step}: {found}", flush=True)
        self.directory.event("evaluation", step=step, **found.metrics())
        return found

    async def _saved(self, evaluation: Evaluation | None = None) -> None:
        score = (evaluation.pass_1, evaluation.reward) if evaluation else None
        checkpoint = await self.checkpoints.save(self.client, self.done, score)
        self.directory.event("checkpoint", step=self.done, path=checkpoint.path)
        self._keep_state()
        await self.checkpoints.prune(await to_thread(self.service.create_rest_client))

    def _keep_state(self) -> None:
        curriculum = self.data.curriculum
        state = {
            "step": self.done,
            "finished": self.final is not None,
            "final": self.final,
            **self._position,
            "elapsed": time.monotonic() - self._began,
            "checkpoints": self.checkpoints.state(),
            "guards": self.guards.state(),
            "ledger": self.failure_counter.state(),
            "left_out": self._holdout.left_out,
            "curriculum": curriculum.state() if curriculum else {},
        }
        self.directory.save_state(state)

    async def finish(self) -> str:
        """Save the trained weights for sampling, and return their path."""
        if self.final is None:
            self.interruption.check()
        final = self.final or await self._final()
        print("\n".join([*self._advice(), *closing_lines(final, self.directory.path)]), flush=True)
        return final

    def _advice(self) -> list[str]:
        """Return whether training helped on the holdout, and which weights to use."""
        evaluations = evaluations_in(read_rows(self.directory.path / METRICS))
        paths = {checkpoint.step: checkpoint.path for checkpoint in self.checkpoints.kept}
        return advice(evaluations, paths, self.cfg.start_from or self.cfg.base_model)

    async def _final(self) -> str:
        answer = await asyncio.shield(self.client.save_weights_for_sampler(name="rl-final"))
        self.final = str(answer.path)
        advice = " ".join(self._advice())
        self.directory.event("finished", step=self.done, path=self.final, text=advice)
        self._keep_state()
        return self.final

    async def _end(self, error: BaseException | None) -> None:
        """Close the run, and raise what ends it."""
        self.interruption.answer = "ignore"
        try:
            if isinstance(error, INTERRUPTED):
                await self._leave()
            ending = self._ending(error)
            if left := self.queue.taken if hasattr(self, "queue") else []:  # of a step in progress
                self.directory.rollouts(rollout_rows(merge_batches(left), self._text))
            failed = ending is not None and not isinstance(ending, KeyboardInterrupt)
            status = "interrupted" if self.final is None else "finished"
            self.directory.set_status("failed" if failed else status)
            if self._analyst is not None:
                self._analyst.write()
        finally:
            self.directory.close()
        if isinstance(ending, Interrupted):
            print(f"Interrupted. {resume_hint(self.saved_step)}", flush=True)
        if ending is not None:
            raise ending

    async def _leave(self) -> None:
        """Save completed work after Ctrl-C, unless it is pressed again."""
        if self.done > self.saved_step and not self._half_done:
            self.interruption.answer = "cancel"
            with contextlib.suppress(*INTERRUPTED, mint.APIConnectionError, TimeoutError):
                await asyncio.wait_for(self._saved(), self.cfg.service_timeout)
            self.interruption.answer = "ignore"
        self.directory.event("interrupted", step=self.saved_step)

    def _ending(self, error: BaseException | None) -> BaseException | None:
        """Return what ends the run, for the error that has ended its loop."""
        if isinstance(error, INTERRUPTED) and self.interruption.presses:
            return Interrupted(self.interruption.code)
        ending: BaseException
        if isinstance(error, TooManyFailures):
            self.directory.event("stopped", name="reward_errors", text=str(error))
            ending = RewardsFailed(f"{error} {self.checkpoints.where}")
        elif isinstance(error, NoAnswer | mint.APIConnectionError):
            ending = lost(error, self.monitor.url, self.saved_step)
            self.directory.event("lost", step=self.saved_step, text=str(ending))
        else:
            return error
        ending.__cause__ = error
        return ending

    @property
    def saved_step(self) -> int:
        """The step after which the same command would resume."""
        return int((self.directory.state() or {"step": 0})["step"])
