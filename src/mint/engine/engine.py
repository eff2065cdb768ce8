"""The engine: one base model, the runs that train on it and the samplers that answer from it."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from mint.engine.adapters.digest import compute_digest
from mint.engine.adapters.lora import Adapter
from mint.engine.adapters.peft_files import read_adapter, write_adapter
from mint.engine.model.base_model import BaseModel
from mint.engine.model.memory import describe, device_memory, plan_memory
from mint.engine.model.precision import is_finite
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool
from mint.engine.sampling.runner import make_runner
from mint.engine.sampling.sampler import Sampler
from mint.engine.sampling.sequence import Job
from mint.engine.sampling.stopping import StopRule
from mint.engine.training.graphs import TrunkGraphs
from mint.engine.training.trainer import LoraTrainer, Steps, finish

from .messages import (
    MAX_SAMPLES,
    AdamSettings,
    DistillDatum,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    ModelInfo,
    SampleRequest,
    UserError,
)

MAX_STOP = 1_000  # characters: the text of as many tokens is searched at every token
MAX_SCORES = 2**24  # numbers that one request may ask for about its tokens, each of 12 bytes


class Engine:
    """The methods that the service calls by name. Only ``sample`` takes many steps."""

    def __init__(self, model: BaseModel, memory_gb: float | None = None) -> None:
        self.model = model
        self._runs: dict[str, LoraTrainer] = {}
        self._tenants: dict[str, str] = {}  # by run
        self._samplers: dict[str, Adapter | None] = {}
        self.budget = plan_memory(model, memory_gb)
        pool = KVPool(model.kv_shapes, self.budget.blocks, model.precision.keys, model.device)
        self._runner = make_runner(model, pool)
        self._graphs = TrunkGraphs(model)
        sizes = (self.budget.max_rows, self.budget.chunk_tokens, self.budget.busy_tokens)
        self.sampling = Sampler(self._runner, *sizes)

    @property
    def info(self) -> ModelInfo:
        """The description of the engine for the service, with what the engine decided."""
        return replace(self.model.info, plan=describe(self.model, self.budget))

    def create_run(self, run_id: str, lora: LoraSpec, tenant: str = "") -> None:
        """Create a run with a fresh adapter; tenants take turns in training."""
        self._runs[run_id] = LoraTrainer(self.model, lora, self.budget.train_tokens, self._graphs)
        self._tenants[run_id] = tenant

    def tenant_of(self, run_id: str) -> str:
        """Return the tenant of a run."""
        return self._tenants[run_id]

    def forward_backward(
        self, run_id: str, operations: list[ForwardBackward]
    ) -> list[ForwardBackwardResult]:
        return finish(self.forward_backward_steps(run_id, operations))

    def forward_backward_steps(
        self, run_id: str, operations: list[ForwardBackward]
    ) -> Steps[list[ForwardBackwardResult]]:
        """Run :meth:`forward_backward` in steps, between which the caller may sample."""
        return self._runs[run_id].forward_backward_steps(operations)

    def optim_step(self, run_id: str, params: AdamSettings) -> dict[str, float]:
        return self._runs[run_id].optim_step(params)

    def save_state(self, run_id: str, folder: str) -> str:
        """Write adapter and optimizer; return the digest of the adapter."""
        self._runs[run_id].save(Path(folder))
        return compute_digest(self._runs[run_id].adapter)

    def load_state(self, run_id: str, folder: str, optimizer: bool) -> None:
        self._runs[run_id].load(Path(folder), optimizer)

    def save_adapter(self, run_id: str, folder: str) -> str:
        """Write an adapter; return its digest."""
        write_adapter(self._runs[run_id].adapter, Path(folder), self.model.name)
        return compute_digest(self._runs[run_id].adapter)

    def create_sampler(
        self, sampler_id: str, run_id: str | None = None, folder: str | None = None
    ) -> str | None:
        """Create a frozen sampler: of a run as it is now, of an adapter on disk, or of the base
        model. Return the digest of its adapter, as it is in memory; the base model has none."""
        adapter: Adapter | None = None
        if run_id is not None:
            adapter = self._runs[run_id].adapter
        elif folder is not None:
            adapter = read_adapter(Path(folder), self.model.sites)
        if adapter is not None:
            adapter = adapter.frozen_copy(self.model.device)
            adapter = replace(adapter, digest=compute_digest(adapter))
            _require_usable(adapter, self.model.precision.lora)
        self._samplers[sampler_id] = adapter
        return adapter.digest if adapter is not None else None

    def save_sampler(self, sampler_id: str, folder: str) -> None:
        """Write a sampler's adapter into an existing folder; the bare base model has none."""
        adapter = self._samplers[sampler_id]
        if adapter is not None:
            write_adapter(adapter, Path(folder), self.model.name)

    def forward_backward_reverse_kl(
        self, run_id: str, sampler_id: str, data: list[DistillDatum], temperature: float
    ) -> tuple[list[float], dict[str, float]]:
        """Losses per datum and metrics of :mod:`mint.engine.training.distill`."""
        losses = self._runs[run_id].reverse_kl(self._samplers[sampler_id], data, temperature)
        return losses, {"loss:sum": sum(losses)}

    def memory(self) -> dict[str, float]:
        """Return what the engine holds, for the service's metrics."""
        return {
            **device_memory(self.model.device),
            "cache_tokens_used": self.sampling.tokens_held,
            "cache_tokens_kept": self.sampling.tokens_kept,
            "cache_tokens_capacity": self.sampling.capacity,
            "runs_resident": len(self._runs),
            "samplers_resident": len(self._samplers),
        }

    def drop_run(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._tenants.pop(run_id, None)

    def drop_sampler(self, sampler_id: str) -> None:
        adapter = self._samplers.pop(sampler_id, None)
        if adapter is not None and adapter not in self._samplers.values():
            self.model.bank.forget(adapter)

    def sample(self, ticket: int, sampler_id: str, request: SampleRequest) -> None:
        """Queue a request; ``sampling.step()`` returns its job, with the ticket, once done."""
        max_tokens = self._check_sample(request)
        stop = StopRule.of(request, self.model.info, self.model.tokenizer)
        self.sampling.submit(Job(ticket, request, self._samplers[sampler_id], stop, max_tokens))

    def _check_sample(self, request: SampleRequest) -> int:
        """Return how many tokens the request may generate. Raises UserError on any mistake."""
        info, length = self.model.info, len(request.prompt)
        if length == 0:
            raise UserError("The prompt is empty. Pass at least one token, such as the BOS token.")
        if request.prompt.min() < 0 or request.prompt.max() >= info.vocab_size:
            raise UserError(
                f"The prompt has a token id outside 0..{info.vocab_size - 1}, this model's "
                "vocabulary. Encode it with the model's own tokenizer (get_tokenizer())."
            )
        if length >= info.context_length:
            raise UserError(
                f"The prompt has {length} tokens, and the model's context is "
                f"{info.context_length}, so there is no room for an answer. Shorten the prompt."
            )
        room = info.context_length - length
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = max(min(room, self.sampling.room(length)), 1)
        if not 1 <= max_tokens <= room:
            raise UserError(
                f"max_tokens is {max_tokens}, but it must be from 1 to {room}: the prompt has "
                f"{length} tokens and the model's context is {info.context_length}."
            )
        if max_tokens > self.sampling.room(length):
            raise UserError(
                f"The prompt's {length} tokens and max_tokens={max_tokens}, in blocks of "
                f"{BLOCK_SIZE}, are more than the {self.sampling.capacity} tokens that this engine "
                "has memory for. Lower max_tokens, shorten the prompt, or give the engine more "
                "memory (memory_gb)."
            )
        _check_sampling_params(request, info.vocab_size)
        _check_scoring_params(request, info.vocab_size, max_tokens)
        return max_tokens


def _require_usable(adapter: Adapter, dtype: torch.dtype) -> None:
    """Refuse weights that would become NaN, which could reach rows of other samplers."""
    if not is_finite([tensor.to(dtype) for tensor in adapter.parameters()]):
        raise UserError(
            "The weights of this sampler contain NaN, infinity or numbers too large for "
            f"{str(dtype).removeprefix('torch.')}, so it was not loaded. Use an earlier "
            "checkpoint, and train on from there with a lower learning rate."
        )


def _check_sampling_params(request: SampleRequest, vocabulary: int) -> None:
    r = request
    for name, is_valid, rule in (
        ("num_samples", 1 <= r.num_samples <= MAX_SAMPLES, f"be from 1 to {MAX_SAMPLES}"),
        ("temperature", 0 <= r.temperature < math.inf, "be 0 (greedy) or a positive number"),
        ("top_p", 0 < r.top_p <= 1, "be above 0 and at most 1 (off)"),
        ("top_k", r.top_k >= -1, "be 1 or more, or -1 (off)"),
        ("min_p", 0 <= r.min_p <= 1, "be from 0 (off) to 1"),
        ("repetition_penalty", 0 < r.repetition_penalty < math.inf, "be positive; 1 is off"),
        ("frequency_penalty", math.isfinite(r.frequency_penalty), "be a finite number"),
        ("presence_penalty", math.isfinite(r.presence_penalty), "be a finite number"),
    ):
        if not is_valid:
            raise UserError(f"{name} is {getattr(request, name)}, but it must {rule}.")
    if r.seeds is not None and (len(r.seeds) != r.num_samples or r.seed is not None):
        raise UserError(
            f"seeds has {len(r.seeds)} numbers for {r.num_samples} samples. Give one for each, and "
            "leave seed out; or leave seeds out."
        )
    for token, bias in request.logit_bias.items():
        if not 0 <= token < vocabulary or not math.isfinite(bias):
            raise UserError(
                f"logit_bias has {token}: {bias}, but this model's token ids are 0 to "
                f"{vocabulary - 1} and a bias is a finite number. Use the model's own tokenizer."
            )
    for stop in request.stop or []:
        if not isinstance(stop, str):
            continue
        if len(stop) > MAX_STOP:
            raise UserError(f"A stop string has {len(stop)} characters; {MAX_STOP} are allowed.")
        if any("\ud800" <= character <= "\udfff" for character in stop):
            raise UserError(f"The stop {stop!r} is not valid Unicode text. Remove it.")


def _check_scoring_params(request: SampleRequest, vocabulary: int, max_tokens: int) -> None:
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        value = getattr(request, name)
        if not 0 <= value <= vocabulary:
            raise UserError(
                f"{name} is {value}, but it must be from 0 to the vocabulary's {vocabulary}."
            )
        tokens = len(request.prompt)
        if name == "topk_sample_logprobs":
            tokens = request.num_samples * max_tokens
        if value * tokens > MAX_SCORES:
            raise UserError(
                f"{name} is {value} for each of up to {tokens} tokens, more than {MAX_SCORES} "
                "numbers in all. Ask for fewer, or for fewer tokens."
            )
    last, length = request.prompt_logprobs_last_n, len(request.prompt)
    if last is not None and not 1 <= last <= length - 1:
        raise UserError(
            f"prompt_logprobs_last_n is {last}, but it must be from 1 to {length - 1}, as the "
            f"prompt has {length} tokens and the first has no logprob."
        )
    targets = request.target_prompt_logprobs
    if targets is None:
        return
    if targets.ndim != 2 or targets.shape[0] != length - 1 or not (targets >= 0).any():
        raise UserError(
            f"target_prompt_logprobs has shape {list(targets.shape)}, but it must have "
            f"{length - 1} rows, one for each prompt token but the first, and name some token."
        )
    if targets.min() < -1 or targets.max() >= vocabulary:
        raise UserError(
            f"target_prompt_logprobs has a token id outside 0..{vocabulary - 1} (-1 skips a cell)."
        )
