"""Messages between the service and an engine: plain data, no torch.

The service calls the methods of :class:`mint.engine.engine.Engine` by name, with these
dataclasses as arguments and results. Arrays are numpy arrays.
"""

import pickle
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
StopReason = Literal["stop", "length"]
PRECISIONS = ("auto", "exact", "half", "bfloat16")

NOT_FINITE = "[not_finite]"
"""A code at the end of an error's text, for programs: a loss, a gradient, a datum or an update has
NaN or infinity, and the weights are as before. The wire protocol has no field for it."""
MAX_SAMPLES = 4096
"""Samples that one request may ask for."""


class UserError(Exception):
    """A mistake in a request. Its text says what, why and what to do, and reaches the client."""


@dataclass(frozen=True)
class EngineOptions:
    """The options of an engine, set by the service before it loads a model.

    ``memory_gb`` bounds what the engine takes of its device: of the GPU's memory on a GPU, of the
    machine's on a CPU. ``None`` leaves the engine to measure what is free.
    """

    precision: str = "auto"
    memory_gb: float | None = None


@dataclass(frozen=True)
class EnginePlan:
    """The decisions of an engine when it loaded its model: `mint serve` prints them."""

    device: str  # "cpu", or the GPU's name
    precision: str  # "exact", "half" or "bfloat16"
    reason: str  # why this precision, in a few words
    kv_tokens: int  # tokens that the pool of keys and values holds
    kv_bytes: int
    train_tokens: int  # tokens of one forward-backward pass
    device_bytes: int  # memory of the device taken after loading, pool included


@dataclass(frozen=True)
class ModelInfo:
    """The description of a loaded base model for the service."""

    arch: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    plan: EnginePlan | None = None


@dataclass(frozen=True)
class LoraSpec:
    """The shape of a run's adapter. ``seed=None`` draws a seed."""

    alpha: ClassVar[int] = 32  # LoRA's numerator: the scale is alpha / rank
    rank: int = 32
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True)
class Datum:
    """One training example: N input tokens and, per loss input, an array of leading size N."""

    tokens: IntArray
    inputs: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ForwardBackward:
    """One ``forward_backward`` (or ``forward``) request."""

    data: list[Datum]
    loss_fn: str
    config: dict[str, float | str] = field(default_factory=dict)
    forward_only: bool = False


@dataclass(frozen=True)
class PackedOperation:
    """A :class:`ForwardBackward`, pickled where it was decoded.

    The service passes it on as it is: taking a large batch apart would stop its event loop.
    """

    payload: bytes | bytearray
    tokens: int
    forward_only: bool

    @classmethod
    def pack(cls, operation: ForwardBackward) -> "PackedOperation":
        tokens = sum(len(datum.tokens) for datum in operation.data)
        payload = pickle.dumps(operation, pickle.HIGHEST_PROTOCOL)
        return cls(payload, tokens, operation.forward_only)

    def unpack(self) -> ForwardBackward:
        operation: ForwardBackward = pickle.loads(self.payload)
        return operation

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        is_apart = int(protocol) >= 5  # then the payload need not be copied into the pickle
        payload = pickle.PickleBuffer(self.payload) if is_apart else self.payload
        return PackedOperation, (payload, self.tokens, self.forward_only)


@dataclass(frozen=True)
class ForwardBackwardResult:
    """Logprobs per datum, shape [N] or [N, K], and metrics named ``name:reduction``.

    ``losses`` has the shapes of ``logprobs``: what each token adds to the loss. So has ``entropy``,
    that of the distribution each target was read off, where it was asked for.
    """

    logprobs: list[FloatArray]
    metrics: dict[str, float]
    losses: list[FloatArray] = field(default_factory=list)
    entropy: list[FloatArray] = field(default_factory=list)


@dataclass(frozen=True)
class DistillDatum:
    """The contexts of a student and its reference before the same targets.

    The last ``len(targets)`` positions of each input predict ``targets``; ``weights`` are per
    target.
    """

    student: IntArray
    reference: IntArray
    targets: IntArray
    weights: FloatArray


@dataclass(frozen=True)
class AdamSettings:
    """The hyper-parameters of one AdamW step, as on the wire."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class SampleRequest:
    """One ``sample`` call: ``num_samples`` continuations of one prompt.

    ``stop=None`` stops at the model's end tokens; strings or token ids are stops in addition to
    these; with an empty list, nothing stops a sample before ``max_tokens``.
    """

    prompt: IntArray
    num_samples: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0  # leave out tokens less likely than this share of the likeliest
    repetition_penalty: float = 1.0  # of tokens in the prompt or the answer so far
    frequency_penalty: float = 0.0  # per occurrence in the answer so far
    presence_penalty: float = 0.0  # for any occurrence in the answer so far
    logit_bias: dict[int, float] = field(default_factory=dict)
    renormalize: bool = False  # report logprobs after top_k, top_p and min_p, not before
    seed: int | None = None
    seeds: list[int] | None = None  # one for each sample, which it then has as if it were alone
    stop: list[str] | list[int] | None = None
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = None  # score only so many tokens at the prompt's end
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: IntArray | None = None  # [N - 1, K] token ids to score, -1 for none
    prompt_alt_tokens_k: int = 0  # tokens to draw in place of each prompt token but the first
    tenant: str = ""  # tenants take turns
    progress: bool = False  # send every token as it is sampled, before the result


@dataclass(frozen=True)
class TopkLogprobs:
    """Row i is the distribution that predicted token i: token ids and logprobs [N, K]."""

    token_ids: IntArray
    logprobs: FloatArray


@dataclass(frozen=True)
class SampledSequence:
    """One continuation. The token that stopped it is included."""

    tokens: IntArray
    logprobs: FloatArray
    stop_reason: StopReason
    topk_logprobs: TopkLogprobs | None = None


@dataclass(frozen=True)
class SampledToken:
    """A sampled token, for requests with ``progress``."""

    sequence: int
    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class SampleResult:
    """The answer to a :class:`SampleRequest`. Prompt tokens that were not scored have NaN."""

    sequences: list[SampledSequence]
    prompt_logprobs: FloatArray | None = None
    topk_prompt_logprobs: TopkLogprobs | None = None
    target_prompt_logprobs: FloatArray | None = None  # [N - 1, K], 0 where the id was -1
    prompt_alt_tokens: TopkLogprobs | None = None  # [N - 1, K] draws, row i for prompt token i + 1
    digest: str | None = None  # of the adapter that sampled it; the base model has none


@dataclass(frozen=True)
class Call:
    """A request to the worker: run ``Engine.<method>(**arguments)`` and answer with ``id``."""

    id: int
    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class EngineReply:
    """The worker's answer: a value, or an error, either the user's or the engine's.

    One that is not final carries the :class:`SampledToken` list of a step, and more will follow. An
    empty list says that a sample has started.
    """

    id: int
    value: Any = None
    error: str | None = None
    is_user_error: bool = False
    errno: int | None = None  # set for an OSError
    is_final: bool = True
