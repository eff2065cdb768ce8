"""A run, step by step: what ``run_grpo`` is made of.

    with Run(adapter, cfg) as run:
        for step in run:
            batch = run.sample(step)
            datums = run.build_datums(batch)
            run.train(batch, datums)
            run.record(batch, datums)
        path = run.finish()

``run.learn(step)`` is the first three of them.

A run that was interrupted resumes from its last checkpoint, with the same data, schedules,
curriculum and optimizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mint
from mint import types
from mint.rl.algorithms.batches import part_sizes
from mint.rl.data.prompts import Data
from mint.rl.datums.datum import build_datums, with_weights
from mint.rl.datums.masking import unmasked
from mint.rl.evaluation.evaluator import HoldoutEvaluator
from mint.rl.evaluation.outcome import advice, closing_lines, evaluations_in
from mint.rl.evaluation.scores import Evaluation
from mint.rl.groups.collect import Batch, Collector, merge_parts
from mint.rl.groups.group_queue import GroupQueue
from mint.rl.guards import Finding, Guards, masked_loss, stability_advice
from mint.rl.loop.checkpoints import RunCheckpoints
from mint.rl.loop.clients import continuing, reference, training_client
from mint.rl.loop.findings import Findings
from mint.rl.loop.measures import measure, staleness
from mint.rl.loop.progress import Progress, sampling_line, step_line
from mint.rl.loop.tally import Tally
from mint.rl.loop.update import Update, train, trained_tokens
from mint.rl.loop.waiting import RunLoop
from mint.rl.recording.directory import describe_run, open_directory
from mint.rl.recording.reward_analysis import Analyst
from mint.rl.recording.reward_log import RewardLog
from mint.rl.recording.run_service import write_service
from mint.rl.recording.step import Recording
from mint.rl.rollouts.credit import assign_advantages
from mint.rl.rollouts.failures import FailureLog
from mint.rl.rollouts.filters import Filters
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.rollout import Group
from mint.rl.rollouts.scoring import Ledger
from mint.rl.runtime.connection import connect, monitor_service
from mint.rl.runtime.endings import Interrupted, ServiceLost, resume_hint
from mint.rl.runtime.event_loop import shielded
from mint.rl.runtime.interruption import Interruption
from mint.rl.runtime.threads import Threads, to_thread
from mint.rl.settings.config import RLConfig
from mint.rl.settings.schedules import learning_rate_at
from mint.rl.task import report
from mint.watch.directory.recorder import METRICS, read_rows


class Run:
    """One training run and everything it needs. See the module's text for how to use it."""

    def __init__(
        self,
        adapter: Any,
        cfg: RLConfig | None = None,
        service: mint.ServiceClient | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        self.adapter = adapter
        self.cfg = cfg or RLConfig.from_env()
        self.cfg.check()
        self.directory = open_directory(self.cfg, adapter)
        self.recording = Recording(self.directory)
        self.done = 0
        self.final: str | None = None
        self.interruption = interruption or Interruption()
        self.guards = Guards(self.cfg)
        self.ledger = Ledger(self.cfg.max_reward_failures)
        self.checkpoints = RunCheckpoints(self.cfg.checkpoint_every, self.cfg.keep_every)
        self.progress = Progress()
        self._monitors: list[Callable[[Batch], None]] = []
        self._analyst: Analyst | None = None
        self._tally = Tally()
        self._elapsed = 0.0
        self._findings = Findings(self.guards, self.directory, self.checkpoints)
        self._waiting = RunLoop(self.interruption, self.directory, self.checkpoints, self.recording)
        workers = self.cfg.reward_workers
        self._threads = Threads(workers) if workers else None
        try:
            self.interruption.listen()
            self._begin(service)
            self.interruption.note()
        except BaseException as error:
            self._end(error)
            raise
        self._began = self._since = time.monotonic()

    def _begin(self, service: mint.ServiceClient | None) -> None:
        cfg, state = self.cfg, self.directory.state()
        self.checkpoints.load(state["checkpoints"] if state else [])
        latest = self.checkpoints.latest
        self.service = service or mint.ServiceClient()
        self._waiting.monitor = monitor = monitor_service(self.service, cfg)
        self._waiting.do(monitor.reach())
        self._waiting.do(connect(self.service))
        write_service(self.directory.path, monitor.url)
        about = describe_run(self.adapter, self.directory.path)
        with continuing(latest):
            self.client = self._waiting.do(training_client(self.service, cfg, latest, about))
        self.tokenizer = self._waiting.do(to_thread(self.client.get_tokenizer))
        self.data = Data(self.adapter, self.tokenizer, cfg)
        held_out = self.data.holdout() if cfg.eval_every else []
        failures = FailureLog(self._findings.keep_failure)
        self.holdout = HoldoutEvaluator(
            self.adapter, cfg, held_out, self.tokenizer, self._threads, failures
        )
        collector = Collector(self.adapter, cfg, self.ledger, self._threads, failures)
        self.queue = GroupQueue(collector, self.data, cfg)
        self.reference = self._waiting.do(reference(self.service, cfg))
        print(f"Model: {cfg.base_model}, run directory: {self.directory.path}", flush=True)
        for note in cfg.notes():
            print(f"  {note}", flush=True)
        order = self.data.decide_order()
        print(order, flush=True)
        if not state:
            self.directory.event("data", order=self.data.order, text=order)
        self._position = self.queue.state()
        if state:
            self._load(state)
            if self.done < cfg.steps:
                print(f"Resuming after step {self.done}.", flush=True)
                self.directory.event("resumed", step=self.done)
        elif cfg.eval_every:
            self._waiting.do(self._first_evaluation())
        if cfg.log_rewards:
            self._monitors.append(RewardLog(self.directory.path))
        if cfg.save_reward_analysis:
            self._analyst = Analyst(self.directory.path)
            self._monitors.append(self._analyst.see)

    def _load(self, state: dict[str, Any]) -> None:
        self.done = state["step"]
        self.final = state["final"]
        self._elapsed = state["elapsed"]
        self.guards.load(state["guards"])
        self.ledger.load(state["ledger"])
        if self.data.curriculum is not None:
            self.data.curriculum.load(state["curriculum"])
        self.queue.load(state)
        self._position = self.queue.state()

    # ---- the steps of a step ----

    def __iter__(self) -> Iterator[int]:
        """The steps that are still to be done."""
        while self.done < self.cfg.steps:
            self.interruption.check()
            yield self.done + 1

    def learn(self, step: int) -> tuple[Batch, list[types.Datum]]:
        """Sample a step and train on it: with ``stream_mini_batches`` on each mini-batch as soon as
        it is complete, while the others are sampled."""
        if not self.cfg.stream_mini_batches:
            batch = self.sample(step)
            return batch, self.train(batch, self.build_datums(batch))
        parts, datums = [], []
        for size in part_sizes(self.cfg.batch_size, self.cfg.mini_batches):
            parts.append(part := self.sample(step, size))
            datums += self.train(part, self.build_datums(part), mini_batches=1)
        return merge_parts(parts), datums

    def sample(self, step: int, groups: int | None = None) -> Batch:
        """Sample and score the groups of a step, or as many of them as are complete first."""
        since = time.monotonic()
        if not self._waiting.half_done:
            self._since, self._tally = since, Tally()
        sampled = self.progress.during(
            lambda: self._sampled(step, groups), lambda: self._shown(step)
        )
        batch = self._waiting.do(sampled)
        self.recording.sampled(batch)
        self._tally.add({"time/sample": time.monotonic() - since})
        return batch

    def _shown(self, step: int) -> str:
        answers = self.cfg.batch_size * self.cfg.group_size
        seconds = time.monotonic() - self._since
        return sampling_line(step, self.cfg.steps, self.queue.answered, answers, seconds)

    async def _sampled(self, step: int, groups: int | None) -> Batch:
        cfg, version = self.cfg, step - 1
        if not self._waiting.half_done:
            client = await self._weights_before(step)
            most, stop = cfg.max_tokens, cfg.stop
            filters = Filters(cfg.top_k, cfg.top_p, cfg.min_p)
            heat, digest = cfg.temperature, await client.weights_digest()
            policy = Policy(client, self.tokenizer, heat, most, stop, version, filters, digest)
            self.queue.publish(policy)
            self.queue.fill(min(max(1, cfg.max_staleness), cfg.steps - version))
        return await self.queue.batch(step, groups)

    async def _weights_before(self, step: int) -> mint.SamplingClient:
        request = self.client.save_weights_and_get_sampling_client_async(f"rl-step-{step}")
        client: mint.SamplingClient = await shielded(request)
        return client

    def useful(self, batch: Batch) -> list[Group]:
        """The groups in which some answer was better than another."""
        return [g for g in batch.groups if g.kind(self.cfg.success_threshold) == "signal"]

    def penalise(self, batch: Batch) -> None:
        """Take the KL to the reference from the rewards, when the config asks for it."""
        if self.reference is not None:
            policy = None if batch.policy.is_plain else batch.clients
            self._tally.add(self._waiting.do(self.reference.penalise(batch.groups, policy)))

    def build_datums(self, batch: Batch) -> list[types.Datum]:
        """Assign advantages from the rewards, and return the datums to train on."""
        cfg = self.cfg
        self.penalise(batch)
        groups = batch.groups if cfg.compares_batch else self.useful(batch)
        assign_advantages(groups, cfg.advantage)
        every = cfg.trains_every_answer
        groups = batch.groups if every else groups
        return build_datums(groups, cfg.token_weights, cfg.max_tokens, cfg.loss_fn, every)

    def train(
        self, batch: Batch, datums: Sequence[types.Datum], mini_batches: int | None = None
    ) -> list[types.Datum]:
        """Train on a batch. Ctrl-C waits for its end, so that a step is done or not begun."""
        parts = mini_batches or self.cfg.mini_batches
        since = time.monotonic()
        edit = getattr(self.adapter, "edit_datums", list)
        edited = [with_weights(datum) for datum in edit(list(datums))]
        wrong = unmasked(edited, batch.groups)
        self._tally.add({"datums": float(len(edited)), "datums/unmasked": float(len(wrong))})
        masked = masked_loss(self._tally.numbers, self.guards.history, self.cfg)
        self._findings.stop_if(list(masked))
        if not self._waiting.half_done:
            self.interruption.check()
        self._waiting.half_done = True
        update = self._waiting.finish_first(self._trained_on(batch, edited, parts))
        self._tally.add({**update.metrics, "time/train": time.monotonic() - since})
        if update.refused is not None:
            refused = Finding("not_finite", update.refused, stability_advice(self.cfg))
            self._findings.report(batch.step, refused)
            self._findings.stop_if([refused])
        return edited

    async def _trained_on(self, batch: Batch, datums: list[types.Datum], parts: int) -> Update:
        step, cfg = batch.step, self.cfg
        rate = learning_rate_at(cfg, step)
        self.queue.fill(min(cfg.max_staleness, cfg.steps - step))  # sampled while this trains
        temperature = batch.policy.temperature
        self._tally.add(
            {
                "train/learning_rate": rate,
                "train/tokens": float(trained_tokens(datums)),
                "policy/temperature": temperature,
            }
        )
        if not datums:
            return Update({})
        update = await train(self.client, datums, cfg, rate, self.reference, temperature, parts)
        if update.refused is None:
            self.recording.trained(datums, update.logprobs_D_T, update.entropy_D_T)
        return update

    def record(self, batch: Batch, datums: Sequence[types.Datum]) -> None:
        """Write a step down, look for trouble, evaluate and save when it is time."""
        try:
            self._record(batch, datums)
        finally:  # also of a step at which a guard rail ends the run
            for monitor in self._monitors:
                monitor(batch)

    def _record(self, batch: Batch, datums: Sequence[types.Datum]) -> None:
        cfg, step = self.cfg, batch.step
        numbers = measure(batch.everything, cfg.success_threshold) | staleness(batch)
        numbers |= self._tally.numbers
        numbers["groups/refilled"] = float(len(batch.dropped))
        if (curriculum := self.data.curriculum) is not None:
            numbers |= curriculum.learn_from(batch.everything, cfg.success_threshold, step)
        last = step == cfg.steps
        evaluation = None
        if cfg.eval_every and (last or step % cfg.eval_every == 0):
            evaluation = self._waiting.finish_first(self._evaluated(step))
            numbers |= evaluation.metrics()
        numbers["time/total"] = self._elapsed + time.monotonic() - self._began
        self.recording.write({"step": step, **numbers})
        rewards = [reward for group in batch.everything for reward in group.rewards]
        seconds = time.monotonic() - self._since
        print(step_line(step, cfg.steps, numbers, seconds), flush=True)
        report(self.adapter, step, rewards, len(datums))
        self._findings.check(step, numbers)
        self.done, self.final = step, None
        self._position, self._waiting.half_done = self.queue.state(), False
        if last or evaluation or self.checkpoints.due(step) or self.interruption.presses:
            self._waiting.finish_first(self._saved(evaluation))

    # ---- evaluation, checkpoints, the end ----

    async def _first_evaluation(self) -> None:
        numbers = (await self._evaluated(0)).metrics()
        self.guards.begin(numbers)
        self.directory.metrics({"step": 0, **numbers})

    async def _evaluated(self, step: int) -> Evaluation:
        found = await self.holdout.evaluate(await self._weights_before(step + 1))
        print(f"Step {step}: {found}", flush=True)
        self.directory.event("evaluation", step=step, **found.metrics())
        return found

    async def _saved(self, evaluation: Evaluation | None = None) -> None:
        score = (evaluation.pass_1, evaluation.reward) if evaluation else None
        checkpoint = await self.checkpoints.save(self.client, self.done, score)
        self.directory.event("checkpoint", step=self.done, path=checkpoint.path)
        self._keep_state(finished=False)
        await self.checkpoints.prune(await to_thread(self.service.create_rest_client))

    def _keep_state(self, finished: bool) -> None:
        curriculum = self.data.curriculum
        state = {
            "step": self.done,
            "finished": finished,
            "final": self.final,
            **self._position,
            "elapsed": self._elapsed + time.monotonic() - self._began,
            "checkpoints": self.checkpoints.state(),
            "guards": self.guards.state(),
            "ledger": self.ledger.state(),
            "curriculum": curriculum.state() if curriculum else {},
        }
        self.directory.save_state(state)

    def finish(self) -> str:
        """Save the trained weights for sampling, and return their path."""
        if self.final is None:
            self.final = self._waiting.do(self._final())
        lines = [*self._advice(), *closing_lines(self.final, self.directory.path)]
        print("\n".join(lines), flush=True)
        return self.final

    def _advice(self) -> list[str]:
        """Return whether training helped on the holdout, and which weights to use."""
        evaluations = evaluations_in(read_rows(self.directory.path / METRICS))
        paths = {checkpoint.step: checkpoint.path for checkpoint in self.checkpoints.kept}
        return advice(evaluations, paths, self.cfg.start_from or self.cfg.base_model)

    async def _final(self) -> str:
        answer = await shielded(self.client.save_weights_for_sampler(name="rl-final"))
        self.final = str(answer.path)
        self.directory.event(
            "finished", step=self.done, path=self.final, text=" ".join(self._advice())
        )
        self._keep_state(finished=True)
        return self.final

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Leave nothing behind. Ctrl-C ends the run with a message that says how to resume."""
        self.interruption.ignore()
        self._waiting.reported = True
        try:
            if isinstance(error, KeyboardInterrupt):
                self._leave()
            elif isinstance(error, ServiceLost):
                self.directory.event("lost", step=self._waiting.saved_step, text=str(error))
            self.recording.end(error, finished=self.final is not None)
            if self._analyst is not None:
                self._analyst.write()
        finally:
            self._close()
        if isinstance(error, KeyboardInterrupt) or (error is None and self.interruption.presses):
            done = f"The run is already finished: {self.final}"
            end = done if self.final else resume_hint(self._waiting.saved_step)
            print(f"Interrupted. {end}", flush=True)
            raise Interrupted from None

    def _leave(self) -> None:
        """After Ctrl-C: keep what was done, unless it is pressed again meanwhile."""
        if self.done > self._waiting.saved_step and not self._waiting.half_done:
            save = asyncio.wait_for(self._saved(), self.cfg.service_timeout)
            with (
                contextlib.suppress(KeyboardInterrupt, ServiceLost, TimeoutError),
                self.interruption.heard(),
            ):
                self._waiting.run(save, on_press=lambda: None)
        self.directory.event("interrupted", step=self._waiting.saved_step)

    def _close(self) -> None:
        self._waiting.close()
        if self._threads is not None:
            self._threads.shutdown()
        self.directory.close()
        self.interruption.close()
