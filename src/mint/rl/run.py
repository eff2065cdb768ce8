"""A run, step by step: what ``run_grpo`` is made of.

    with Run(adapter, cfg) as run:
        for step in run:
            batch = run.sample(step)
            datums = run.prefer(batch)
            run.train(batch, datums)
            run.record(batch, datums)
        path = run.finish()

A run that was interrupted goes on at its last checkpoint, with the same data, schedules,
curriculum and optimizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import mint
from mint import types
from mint.rl.adapter import RLAdapter
from mint.rl.advantage import advantages
from mint.rl.checkpoints import Checkpoints
from mint.rl.clients import continuing, lifeline_of, reference, training_client
from mint.rl.collect import Batch, Collector
from mint.rl.config import RLConfig
from mint.rl.data import Data
from mint.rl.datums import build_datums, unmasked
from mint.rl.directory import open_directory
from mint.rl.endings import Interrupted, RunStopped, ServiceLost
from mint.rl.evaluation import Evaluation
from mint.rl.evaluator import Exam
from mint.rl.guards import Finding, Guards, masked_loss
from mint.rl.lifeline import NoAnswer
from mint.rl.measures import measure
from mint.rl.policy import Policy
from mint.rl.rollout import Group
from mint.rl.schedules import learning_rate_at, temperature_at
from mint.rl.scoring import Ledger
from mint.rl.tables import rollout_rows
from mint.rl.update import train, trained_tokens

Result = TypeVar("Result")


class Run:
    """One training run and everything it needs. See the module's text for how to use it."""

    def __init__(
        self, adapter: Any, cfg: RLConfig | None = None, service: mint.ServiceClient | None = None
    ) -> None:
        self.adapter = adapter
        self.cfg = cfg or RLConfig.from_env()
        self.cfg.check()
        self.directory = open_directory(self.cfg, adapter)
        self.done = 0
        self.final: str | None = None
        self.interrupted = False
        self.guards = Guards(self.cfg)
        self.ledger = Ledger(self.cfg.max_reward_failures)
        self.checkpoints = Checkpoints(self.cfg.keep_every)
        self._numbers: dict[str, float] = {}
        self._ahead: asyncio.Task[Batch] | None = None
        self._refused: Finding | None = None
        self._trained = self._calls = 0
        self._elapsed = 0.0
        self._runner = asyncio.Runner()
        workers = self.cfg.reward_workers
        self._threads = ThreadPoolExecutor(workers) if workers else None
        try:
            self._begin(service)
        except BaseException as error:
            self._end(error)
            raise
        self._began = self._since = time.monotonic()

    def _begin(self, service: mint.ServiceClient | None) -> None:
        cfg, state = self.cfg, self.directory.state()
        self.checkpoints.load(state["checkpoints"] if state else [])
        latest = self.checkpoints.latest
        self.service = service or mint.ServiceClient()
        self.lifeline = lifeline_of(self.service, cfg)
        self._do(self.lifeline.reach())
        with continuing(latest):
            self.client = self._do(training_client(self.service, cfg, latest))
        self.tokenizer = self.client.get_tokenizer()
        self.data = Data(self.adapter, self.tokenizer, cfg)
        held_out = self.data.holdout() if cfg.eval_every else []
        self.exam = Exam(self.adapter, cfg, held_out, self.tokenizer, self._threads)
        self.collector = Collector(self.adapter, cfg, self.ledger, self._threads)
        self.reference = self._do(reference(self.service, cfg))
        print(f"Model: {cfg.base_model}, run directory: {self.directory.path}", flush=True)
        for note in cfg.notes():
            print(f"  {note}", flush=True)
        if state:
            self._load(state)
            if self.done < cfg.steps:
                print(f"Continuing after step {self.done}.", flush=True)
                self.directory.event("resumed", step=self.done)
        elif cfg.eval_every:
            self._do(self._first_evaluation())

    def _load(self, state: dict[str, Any]) -> None:
        self.done = self._trained = state["step"]
        self.final = state["final"]
        self._calls = state["calls"]
        self._elapsed = state["elapsed"]
        self.guards.load(state["guards"])
        self.ledger.load(state["ledger"])
        if self.data.curriculum is not None:
            self.data.curriculum.load(state["curriculum"])
        self.data.replay(self._calls)

    # ---- the steps of a step ----

    def __iter__(self) -> Iterator[int]:
        """The steps that are still to be done."""
        while self.done < self.cfg.steps:
            yield self.done + 1
            if self.interrupted:
                raise KeyboardInterrupt

    def sample(self, step: int) -> Batch:
        """Sample and score the groups of a step."""
        self._since = time.monotonic()
        self._numbers = {}
        batch = self._do(self._sampled(step))
        self._numbers["time/sample"] = time.monotonic() - self._since
        return batch

    async def _sampled(self, step: int) -> Batch:
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return await ahead
        return await self._collected(step, await self._policy(step))

    async def _collected(self, step: int, policy: Policy) -> Batch:
        return await self.collector.batch(policy, self.data.draw(step))

    async def _policy(self, step: int) -> Policy:
        client, cfg = await self._weights_before(step), self.cfg
        temperature = temperature_at(cfg, step)
        return Policy(client, self.tokenizer, temperature, cfg.max_tokens, cfg.stop, self._trained)

    async def _weights_before(self, step: int) -> mint.SamplingClient:
        return await self.client.save_weights_and_get_sampling_client_async(f"rl-step-{step}")

    def useful(self, batch: Batch) -> list[Group]:
        """The groups in which some answer was better than another."""
        return [g for g in batch.groups if g.kind(self.cfg.success_threshold) == "signal"]

    def penalise(self, batch: Batch) -> None:
        """Take the KL to the reference from the rewards, when the config asks for it."""
        if self.reference is not None:
            policy = None if batch.policy.temperature == 1.0 else batch.policy.client
            self._numbers |= self._do(self.reference.penalise(self.useful(batch), policy))

    def prefer(self, batch: Batch) -> list[types.Datum]:
        """From rewards to what is trained on."""
        cfg = self.cfg
        self.penalise(batch)
        groups = self.useful(batch)
        found = advantages([[r.total for r in g.counted] for g in groups], cfg.advantage)
        for group, advantages_G in zip(groups, found, strict=True):
            for rollout, advantage in zip(group.counted, advantages_G, strict=True):
                rollout.advantage = advantage
        return build_datums(groups, cfg.token_weights, cfg.max_tokens, cfg.loss_fn)

    def train(self, batch: Batch, datums: Sequence[types.Datum]) -> list[types.Datum]:
        """Train on a batch. Ctrl-C waits for its end, so that a step is done or not begun."""
        since = time.monotonic()
        edit = getattr(self.adapter, "edit_datums", list)
        edited: list[types.Datum] = edit(list(datums))
        wrong = unmasked(edited, batch.groups)
        self._numbers |= {"datums": float(len(edited)), "datums/unmasked": float(len(wrong))}
        self._stop_if(list(masked_loss(self._numbers, self.guards.history, self.cfg)))
        self._numbers |= self._do(self._trained_on(batch, edited))
        self._numbers["time/train"] = time.monotonic() - since
        if self._refused is not None:
            refused, self._refused = self._refused, None
            self._tell(batch.step, refused)
            self._stop_if([refused])
        self._trained = batch.step
        return edited

    async def _trained_on(self, batch: Batch, datums: list[types.Datum]) -> dict[str, float]:
        step, cfg = batch.step, self.cfg
        rate = learning_rate_at(cfg, step)
        if cfg.max_staleness and step < cfg.steps:
            policy = await self._policy(step + 1)
            self._ahead = asyncio.ensure_future(self._collected(step + 1, policy))
        found = {
            "train/learning_rate": rate,
            "train/tokens": float(trained_tokens(datums)),
            "policy/temperature": batch.policy.temperature,
            "policy/staleness": float(step - 1 - batch.policy.version),
        }
        if not datums:
            return found
        try:
            return found | await self._to_its_end(train(self.client, datums, cfg, rate))
        except mint.RequestFailedError as error:
            if "finite" not in str(error) and "The loss is" not in str(error):
                raise
            advice = "Set grad_clip_norm=1.0 as well."
            self._refused = Finding("not_finite", str(error), advice)
            return found | {"train/refused": 1.0}

    async def _to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.lifeline.lost:
                task.cancel()
                raise
            self.interrupt()
            return await task

    def interrupt(self) -> None:
        """End the run after this step, as Ctrl-C does."""
        print("Interrupted: ending this step. Ctrl-C again leaves at once.", flush=True)
        self.interrupted = True

    def record(self, batch: Batch, datums: Sequence[types.Datum]) -> None:
        """Write a step down, look for trouble, evaluate and save when it is time."""
        cfg, step = self.cfg, batch.step
        numbers = measure(batch.everything, cfg.success_threshold) | self._numbers
        numbers["groups/refilled"] = float(len(batch.dropped))
        if self.data.curriculum is not None:
            numbers |= self.data.curriculum.learn_from(batch.everything, cfg.success_threshold)
        last = step == cfg.steps
        evaluation = None
        if cfg.eval_every and (last or step % cfg.eval_every == 0):
            evaluation = self._do(self._evaluated(step))
            numbers |= evaluation.metrics()
        numbers["time/total"] = self._elapsed + time.monotonic() - self._began
        self.directory.rollouts(rollout_rows(batch))
        self.directory.metrics({"step": step, **numbers})
        rewards = [reward for group in batch.everything for reward in group.rewards]
        _report(self.adapter)(step, rewards, len(datums))
        self._watch(step, numbers)
        self.done, self.final = step, None
        self._calls = batch.calls
        if last or evaluation or step % cfg.checkpoint_every == 0 or self.interrupted:
            self._do(self._saved(evaluation))

    def _watch(self, step: int, numbers: dict[str, float]) -> None:
        findings = self.guards.check(numbers)
        for finding in self.guards.news(findings):
            self._tell(step, finding)
        self._stop_if(findings)

    def _tell(self, step: int, finding: Finding) -> None:
        print(f"  {finding}", flush=True)
        self.directory.event("finding", step=step, name=finding.name, text=str(finding))

    def _stop_if(self, findings: list[Finding]) -> None:
        fatal = self.guards.fatal(findings)
        if fatal is None:
            return
        latest = self.checkpoints.latest
        where = f"The last good checkpoint is {latest.path}" if latest else "Nothing was saved yet"
        self.directory.event("stopped", name=fatal.name, text=str(fatal))
        raise RunStopped(f"{fatal} {where}. To go on regardless, take it out of stop_on.")

    # ---- evaluation, checkpoints, the end ----

    async def _first_evaluation(self) -> None:
        numbers = (await self._evaluated(0)).metrics()
        self.guards.begin(numbers)
        self.directory.metrics({"step": 0, **numbers})

    async def _evaluated(self, step: int) -> Evaluation:
        found = await self.exam.taken_by(await self._weights_before(step + 1))
        print(f"Step {step}: {found}", flush=True)
        self.directory.event("evaluation", step=step, **found.metrics())
        return found

    async def _saved(self, evaluation: Evaluation | None = None) -> None:
        score = (evaluation.pass_1, evaluation.reward) if evaluation else None
        checkpoint = await self.checkpoints.save(self.client, self.done, score)
        self.directory.event("checkpoint", step=self.done, path=checkpoint.path)
        self._keep_state(finished=False)
        await self.checkpoints.prune(self.service.create_rest_client())

    def _keep_state(self, finished: bool) -> None:
        curriculum = self.data.curriculum
        state = {
            "step": self.done,
            "finished": finished,
            "final": self.final,
            "calls": self._calls,
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
            self.final = self._do(self._final())
        best = self.checkpoints.best
        if best is not None and best.step != self.done:
            print(f"Best on the holdout: step {best.step}, {best.path}", flush=True)
        print(f"Saved: {self.final}", flush=True)
        return self.final

    async def _final(self) -> str:
        answer = await self.client.save_weights_for_sampler(name="rl-final")
        self.final = str(answer.path)
        self.directory.event("finished", step=self.done, path=self.final)
        self._keep_state(finished=True)
        return self.final

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._runner.run(self.lifeline.during(work))
        except NoAnswer as error:
            raise ServiceLost(f"{error} {self._how_to_go_on()}") from error
        except mint.APIConnectionError as error:
            said = f"The service at {self.lifeline.url} cannot be reached: {error}"
            raise ServiceLost(f"{said} {self._how_to_go_on()}") from error

    def _how_to_go_on(self) -> str:
        step = self._saved_step
        lost = f"What came after step {step} is lost." if step else "Nothing was saved yet."
        then = f"goes on after step {step}" if step else "begins again"
        return (
            f"{lost} When the service is back, with its home folder, the same command {then}. "
            "service_timeout is how long to wait for it."
        )

    @property
    def _saved_step(self) -> int:
        return self.checkpoints.latest.step if self.checkpoints.latest else 0

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Leave nothing behind. Ctrl-C becomes an end that says how to go on."""
        try:
            match error:
                case KeyboardInterrupt():
                    self._leave()
                    raise Interrupted from None
                case ServiceLost():
                    self.directory.event("lost", step=self._saved_step, text=str(error))
        finally:
            self._close()

    def _leave(self) -> None:
        """After Ctrl-C: keep what was done, unless it is pressed again."""
        between_steps = self.done == self._trained
        if between_steps and self.done and self._saved_step != self.done:
            with contextlib.suppress(KeyboardInterrupt, ServiceLost):
                self._do(self._saved())
        step = self._saved_step
        self.directory.event("interrupted", step=step)
        print(f"Interrupted. The same command goes on after step {step}.", flush=True)

    def _close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
        self._runner.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self.directory.close()


def _report(adapter: Any) -> Any:
    """How an adapter says how a step went; an environment may leave it to us."""
    if hasattr(adapter, "evaluate"):
        return adapter.evaluate
    return lambda step, rewards, datums: RLAdapter.evaluate(adapter, step, rewards, datums)
