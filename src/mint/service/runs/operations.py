"""Carry out each kind of operation in the engine."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mint.engine.messages import ForwardBackwardResult
from mint.service.checkpoints.storage import (
    EXTERNAL,
    SAMPLER,
    TRAINING,
    CheckpointPath,
    CheckpointStore,
    NewCheckpoint,
    check_name,
    tinker_path,
)
from mint.service.engines.process import EngineProcess
from mint.service.errors import UserError
from mint.service.futures import Response
from mint.service.runs.journal import Journal
from mint.service.runs.references import References
from mint.service.sampling.samplers import Samplers
from mint.service.store.database import CheckpointRow, RunRow
from mint.service.wire import codec, requests
from mint.service.wire.decoding import Decoder

_DISK_FULL = ("No space left on device", "File too large", "Disk quota exceeded")


@dataclass(frozen=True)
class Done:
    """The result of a group: a response per operation and a small JSON result, if there is one."""

    answers: list[Response]
    result: dict[str, Any] | None = None
    tokens: int = 0

    @classmethod
    def json(cls, result: dict[str, Any]) -> Done:
        return cls([Response.json(result)], result)


@dataclass(frozen=True)
class Operations:
    """Carries out a run's operations, whose bodies are read from its journal."""

    run: RunRow
    journal: Journal
    checkpoints: CheckpointStore
    samplers: Samplers
    decoder: Decoder
    references: References = field(init=False)

    def __post_init__(self) -> None:
        references = References(self.run, self.journal, self.checkpoints)
        object.__setattr__(self, "references", references)

    async def perform(self, engine: EngineProcess, kind: str, seq_ids: Sequence[int]) -> Done:
        """Run one group. Raises UserError for the user's mistakes."""
        if kind in ("forward", "forward_backward"):
            return await self._forward_backward(engine, seq_ids)
        body = await asyncio.to_thread(self.journal.body, seq_ids[0])
        match kind:
            case "optim_step":
                return await self._optim_step(engine, body)
            case "save_weights":
                return await self._save(engine, seq_ids[0], body)
            case "save_weights_for_sampler":
                return await self._save_for_sampler(engine, seq_ids[0], body)
            case "save_weights_external":
                return await self._export(engine, seq_ids[0], body)
            case "load_weights":
                return await self._load(engine, seq_ids[0], body)
            case "forward_backward_reverse_kl":
                return await self._reverse_kl(engine, seq_ids[0], body)
        raise UserError(f"There is no operation {kind!r}.")

    # ---- training -------------------------------------------------------------------------------

    async def _forward_backward(self, engine: EngineProcess, seq_ids: Sequence[int]) -> Done:
        bodies = await asyncio.to_thread(lambda: [self.journal.body(n) for n in seq_ids])
        entries = [self.journal.entries[n] for n in seq_ids]
        operations = await self.decoder.forward_backward(
            bodies,
            [entry.content_type == codec.PROTOBUF for entry in entries],
            forward_only=entries[0].kind == "forward",
        )
        results: list[ForwardBackwardResult] = await engine.call(
            "forward_backward", run_id=self.run.id, operations=operations
        )
        encoded = await asyncio.to_thread(
            lambda: [codec.encode_forward_backward(result) for result in results]
        )
        tokens = sum(operation.tokens for operation in operations)
        return Done([Response.protobuf(body) for body in encoded], tokens=tokens)

    async def _reverse_kl(self, engine: EngineProcess, seq_id: int, body: bytes) -> Done:
        request = await asyncio.to_thread(requests.parse, requests.ReverseKl, body)
        data = await asyncio.to_thread(codec.decode_reverse_kl, request.data)
        reference = await self.references.load(engine, request.reference_model_path, seq_id)
        losses, metrics = await engine.call(
            "forward_backward_reverse_kl",
            run_id=self.run.id,
            sampler_id=reference,
            data=data,
            temperature=request.temperature,
        )
        outputs = [{"loss": {"data": [x], "shape": [1], "dtype": "float32"}} for x in losses]
        kind = "mint_forward_backward_reverse_kl"
        result = {"outputs": outputs, "metrics": metrics, "type": kind}
        tokens = sum(len(datum.student) for datum in data)
        return Done([Response.json(result)], result, tokens)

    async def _optim_step(self, engine: EngineProcess, body: bytes) -> Done:
        params = requests.parse(requests.OptimStep, body).to_engine()
        metrics = await engine.call("optim_step", run_id=self.run.id, params=params)
        return Done.json({"metrics": metrics, "type": "optim_step"})

    # ---- weights --------------------------------------------------------------------------------

    async def _save(self, engine: EngineProcess, seq_id: int, body: bytes) -> Done:
        request = requests.parse(requests.SaveWeights, body)
        row = await self._write(engine, "save_state", self._new(TRAINING, seq_id, request))
        return Done.json({"path": tinker_path(row).uri, "type": "save_weights"})

    async def _export(self, engine: EngineProcess, seq_id: int, body: bytes) -> Done:
        request = requests.parse(requests.SaveWeightsExternal, body)
        path = CheckpointPath(self.run.id, EXTERNAL, check_name(request.path))
        new = NewCheckpoint(path, seq_id, False, request.ttl_seconds, {})
        row = await self._write(engine, "save_adapter", new)
        result = {"path": path.uri, "size_bytes": row.size_bytes, "type": "save_weights_external"}
        return Done.json(result)

    async def _save_for_sampler(self, engine: EngineProcess, seq_id: int, body: bytes) -> Done:
        request = requests.parse(requests.SaveWeightsForSampler, body)
        if request.path is None and request.sampling_session_seq_id is not None:
            sampler_id = f"{self.run.session_id}:sample:{request.sampling_session_seq_id}"
            await self.samplers.freeze(self.run, sampler_id, engine, seq_id)
            return Done.json(
                {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}
            )
        row = await self._write(engine, "save_adapter", self._new(SAMPLER, seq_id, request))
        return Done.json({"path": tinker_path(row).uri, "type": "save_weights_for_sampler"})

    def _new(self, kind: str, seq_id: int, request: requests.SaveWeights) -> NewCheckpoint:
        name = check_name(request.path) if request.path is not None else f"operation-{seq_id}"
        return NewCheckpoint(
            CheckpointPath(self.run.id, kind, name),
            seq_id,
            request.overwrite,
            request.ttl_seconds,
            request.user_metadata,
        )

    async def _write(self, engine: EngineProcess, method: str, new: NewCheckpoint) -> CheckpointRow:
        await asyncio.to_thread(self.checkpoints.check_quota, self.run, new.path)
        draft: Path = await asyncio.to_thread(self.checkpoints.begin, new)
        try:
            try:
                digest = await engine.call(method, run_id=self.run.id, folder=str(draft))
            except RuntimeError as error:
                raise _as_full_disk(error) or error from error
            return await asyncio.to_thread(self.checkpoints.publish, new, draft, self.run, digest)
        except BaseException:
            await asyncio.to_thread(self.checkpoints.discard, draft)
            raise

    async def _load(self, engine: EngineProcess, seq_id: int, body: bytes) -> Done:
        request = requests.parse(requests.LoadWeights, body)
        folder = await asyncio.to_thread(self._to_load, request, seq_id)
        await engine.call(
            "load_state",
            run_id=self.run.id,
            folder=str(folder),
            optimizer=request.optimizer,
        )
        uri = CheckpointPath.parse(request.path).uri
        return Done.json({"path": uri, "type": "load_weights"})

    def _to_load(self, request: requests.LoadWeights, seq_id: int) -> Path:
        """Return the folder of the files to load, as the checkpoint had them the first time."""
        if (kept := self.references.loaded_by(seq_id)) is not None:
            return kept
        path, row = self.checkpoints.require(request.path, self.run.user)
        check_optimizer_of(path, request.optimizer)
        if row.base_model != self.run.base_model:
            raise UserError(
                f"{path.uri} was trained from {row.base_model}, and this run trains "
                f"{self.run.base_model}. Create the run with base_model={row.base_model!r}."
            )
        return self.references.keep_loaded(path, seq_id)


def check_optimizer_of(path: CheckpointPath, wanted: bool) -> None:
    """Raises UserError when an optimizer is to be loaded from where there is none."""
    if wanted and path.kind != TRAINING:
        raise UserError(
            f"{path.uri} contains weights for sampling, without optimizer state. Load a "
            f"tinker://…/{TRAINING}/… checkpoint, which save_state() makes, or only the weights "
            "of this one (optimizer=False)."
        )


def _as_full_disk(error: RuntimeError) -> OSError | None:
    if any(text in str(error) for text in _DISK_FULL):
        return OSError(errno.ENOSPC, str(error))
    return None
