"""Request models: unknown fields are ignored, nulls are absent, unsupported fields are refused."""

from dataclasses import fields
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json, to_json

from mint.engine import messages
from mint.engine.messages import MAX_SAMPLES, UserError
from mint.service.wire import codec
from mint.service.wire.arrays import Csr

MIN_TTL_S, MAX_TTL_S = 3600, 10 * 365 * 24 * 3600
MAX_METADATA_BYTES = 64 * 1024
MAX_PROMPT_TOKENS = 2**20  # ten times as many would take the event loop a second to check
MAX_TOP_K = 2**31 - 1  # more than any vocabulary has
MIN_TEMPERATURE = 1e-5  # below it sampling is greedy, as in vLLM: logits / 1e-40 is infinite
Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list that reports only its first wrong item: there may be millions."""
MAX_CONFIRMED = 100_000  # results that one request confirms: as many as are kept
MAX_STOPS = 100  # every token's text is searched for all of them, while other requests wait
_CONTENT = {"prompt", "messages", "stop", "tools", "data", "user_metadata", "tags", "detail"}
"""Fields whose content is not repeated in errors."""


class Request(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


def parse(model: type[Model], body: bytes) -> Model:
    """Parse a JSON body. Raises UserError with all that is wrong with it."""
    try:
        return model.model_validate(read_json(body))
    except ValidationError as error:
        raise UserError(describe(error.errors())) from error


def read_json(body: bytes) -> Any:
    """Parse JSON whose strings are all valid Unicode. Raises UserError."""
    try:
        return from_json(body)
    except ValueError as error:
        raise UserError(
            f"The request is not valid JSON: {error}. It must be UTF-8, and its \\u escapes must "
            "form whole characters (\\ud800 alone is half of one). Correct the request and send "
            "it again."
        ) from error


def describe(faults: list[Any]) -> str:
    """Describe each fault: the field, what is wrong with it, and what was sent. Fields that may
    contain prompts are not repeated, as errors end up in logs."""
    lines = []
    for fault in faults:
        names = [str(part) for part in fault["loc"] if part != "body"]
        sent = fault.get("input")
        is_named = bool(names) and not _CONTENT.intersection(names)
        is_shown = isinstance(sent, int | float) or (isinstance(sent, str) and is_named)
        shown = f" (sent: {str(sent)[:80]})" if is_shown else ""
        message = fault["msg"].removeprefix("Value error, ")  # pydantic's, before our own texts
        lines.append(f"{'.'.join(names) or 'the request'}: {message}{shown}")
    return "; ".join(lines) + ". Correct the request and send it again."


Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


def _without_nul(texts: dict[str, str]) -> dict[str, str]:
    if "\0" in "".join((*texts, *texts.values())):
        raise ValueError("has a NUL character, which cannot be stored")
    return texts


def _small(value: Item) -> Item:
    """Refuse metadata that would fill the disk: it is stored with every session and run."""
    if (size := len(to_json(value))) > MAX_METADATA_BYTES:
        raise ValueError(f"has {size} bytes of JSON; at most {MAX_METADATA_BYTES} are stored")
    return value


Texts = Annotated[
    dict[str, str],
    BeforeValidator(lambda d: {k: str(v) for k, v in d.items()} if isinstance(d, dict) else d),
    AfterValidator(_without_nul),
    AfterValidator(_small),
]


def few_stops(stops: Item) -> Item:
    if isinstance(stops, list) and sum(isinstance(stop, str) for stop in stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} strings, and at most {MAX_STOPS} are allowed")
    return stops


Stops = Annotated[str | Many[int] | Many[str], AfterValidator(few_stops)]
Ttl = Annotated[int, Field(ge=MIN_TTL_S, le=MAX_TTL_S)]
Temperature = Annotated[NotNegative, AfterValidator(lambda t: t if t >= MIN_TEMPERATURE else 0.0)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
MinP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=-1), AfterValidator(lambda k: k if k <= MAX_TOP_K else -1)]
"""How many of the most likely tokens to sample from; -1 and 0 mean all."""


# ---- sessions ----------------------------------------------------------------------------------


class CreateSession(Request):
    tags: Many[str] = []
    user_metadata: Texts = {}
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None

    @model_validator(mode="after")
    def _is_small(self) -> Self:
        return _small(self)


class FinishReason(Request):
    type: Literal["success", "errored", "interrupted"] = "success"


class FinishSession(Request):
    reason: FinishReason = FinishReason()
    detail: Annotated[str | None, AfterValidator(_small)] = None


class SessionProject(Request):
    project_id: str = Field(min_length=1, max_length=200)


# ---- training ----------------------------------------------------------------------------------


class LoraConfig(Request):
    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Request):
    type: Literal["adamw"] = "adamw"


class CreateModel(Request):
    session_id: str
    model_seq_id: int = Field(ge=0, lt=10**9)
    base_model: str
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()
    user_metadata: Texts = {}


class AdamParamsField(Request):
    type: Annotated[Literal["adamw"], Field(exclude=True)] = "adamw"
    learning_rate: NotNegative = 1e-4
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: NotNegative = 1e-12
    weight_decay: NotNegative = 0.0
    grad_clip_norm: NotNegative = 0.0


class OptimStep(Request):
    adam_params: Annotated[
        AdamParamsField, Field(validation_alias=AliasChoices("optimizer_params", "adam_params"))
    ] = AdamParamsField()


# ---- weights -----------------------------------------------------------------------------------


class SaveWeights(Request):
    path: str | None = None
    ttl_seconds: Ttl | None = None
    overwrite: bool = False
    user_metadata: Texts = {}


class SaveWeightsForSampler(SaveWeights):
    sampling_session_seq_id: int | None = Field(default=None, ge=0, lt=10**12)


class SaveWeightsExternal(Request):
    path: str
    ttl_seconds: Ttl | None = None
    age_encryption_recipients: Many[str] = []

    @model_validator(mode="after")
    def _refuse_encryption(self) -> Self:
        if self.age_encryption_recipients:
            raise ValueError(
                "age_encryption_recipients is not supported: exported files are not encrypted"
            )
        return self


class ReadsWeights(Request):
    weights_access_token: str | None = None

    @model_validator(mode="after")
    def _refuse_tokens(self) -> Self:
        if self.weights_access_token is not None:
            raise ValueError(
                "weights_access_token is not supported; use the owner's API key, or ask the owner "
                "to publish the checkpoint"
            )
        return self


class LoadWeights(ReadsWeights):
    path: str
    optimizer: bool = False


class CreateByLoad(LoadWeights):
    """``load_weights`` as the first request of a new run."""

    session_id: str
    model_seq_id: int = Field(ge=0, lt=10**9)
    base_model: str | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()
    user_metadata: Texts = {}


class CopyWeights(ReadsWeights):
    source_path: str
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0, lt=10**9)
    destination_project_id: str | None = None
    ttl_seconds: Ttl | None = None

    @model_validator(mode="after")
    def _one_destination(self) -> Self:
        if (self.session_id is None) != (self.model_seq_id is None):
            raise ValueError("session_id and model_seq_id belong together: set both or neither")
        if (self.session_id is None) == (self.destination_project_id is None):
            raise ValueError("set destination_project_id, or session_id with model_seq_id")
        return self


class SetTtl(BaseModel):
    """The new TTL. ``null`` means never, and the field cannot be left out."""

    ttl_seconds: Ttl | None


class Prune(Request):
    older_than_s: Annotated[float, Field(ge=0, le=10**10)] = 0.0
    keep_last: int = Field(default=1, ge=0, le=10**6)
    keep: Many[Annotated[str, Field(max_length=200)]] = Field(default=[], max_length=100)
    run_id: str | None = None
    dry_run: bool = True


class Interpolate(Request):
    source_paths: Many[str] = Field(min_length=1, max_length=64)
    coefficients: Many[Finite]
    output_path: str | None = None
    output_checkpoint_type: Literal["sampler"] = "sampler"

    @model_validator(mode="after")
    def _one_coefficient_each(self) -> Self:
        if len(self.coefficients) != len(self.source_paths):
            raise ValueError(
                f"coefficients has {len(self.coefficients)} numbers for the "
                f"{len(self.source_paths)} source_paths; pass one for each"
            )
        return self


class ReverseKl(Request):
    reference_model_path: str
    data: Many[Any]
    temperature: Finite = 1.0


# ---- sampling ----------------------------------------------------------------------------------


class CreateSamplingSession(Request):
    session_id: str
    sampling_session_seq_id: int = Field(ge=0, lt=10**12)
    base_model: str | None = None
    model_path: str | None = None


class Sampling(Request):
    """The fields that every request for samples has."""

    seed: int | None = None
    temperature: Temperature = 1.0
    top_k: TopK = -1
    top_p: TopP = 1.0
    min_p: MinP = 0.0


class SamplingParamsField(Sampling):
    max_tokens: int | None = Field(default=None, ge=1)
    stop: Stops | None = None
    stop_token_ids: Many[int] | None = None
    renormalize: bool = False
    seeds: Many[int] | None = None

    def stops(self) -> list[str] | list[int] | None:
        if self.stop_token_ids is not None and self.stop is not None:
            raise UserError("Set stop or stop_token_ids, not both.")
        if self.stop_token_ids is not None:
            return self.stop_token_ids
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        if "" in (stops or []):
            # without it, [""] would be [], with which not even the end token stops a sample
            raise UserError(
                "stop has an empty string, which every text contains. Leave it out, or set stop to "
                "null for the model's own end."
            )
        return stops


class Prompt(Request):
    chunks: Many[dict[str, Any]]


class SampleBody(Request):
    prompt: Prompt
    sampling_params: SamplingParamsField = SamplingParamsField()
    num_samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = Field(default=0, ge=0)
    topk_sample_logprobs: int = Field(default=0, ge=0)
    prompt_alt_tokens_k: int = Field(default=0, ge=0)
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    target_prompt_logprobs: dict[str, Any] | None = None
    record_stability_info: bool = False

    def to_engine(self) -> messages.SampleRequest:
        if self.record_stability_info:
            raise UserError(
                "record_stability_info is not supported by this service, as it has no "
                "stable_reinforce loss. Leave it out of the request."
            )
        if self.prompt_logprobs_last_n is not None and not self.prompt_logprobs:
            raise UserError("prompt_logprobs_last_n needs prompt_logprobs=true as well.")
        if self.sampling_session_id is None:
            raise UserError(
                "sampling_session_id is missing. Create one with create_sampling_session first."
            )
        prompt = codec.decode_chunks(self.prompt.chunks, "prompt", MAX_PROMPT_TOKENS)
        targets = self.target_prompt_logprobs
        return messages.SampleRequest(
            **engine_fields(self.sampling_params)
            | engine_fields(self)
            | {
                "prompt": prompt,
                "stop": self.sampling_params.stops(),
                "prompt_logprobs": self.prompt_logprobs or self.topk_prompt_logprobs > 0,
                "target_prompt_logprobs": None
                if targets is None
                else codec.decode_targets(targets, len(prompt)),
            }
        )

    def target_cells(self) -> Csr | None:
        """Return the cells that a sparse ``target_prompt_logprobs`` lists."""
        if self.target_prompt_logprobs is None:
            return None
        return codec.decode_csr(self.target_prompt_logprobs, "target_prompt_logprobs")


def engine_fields(request: Request) -> dict[str, Any]:
    """Return the fields of a request that the engine knows by the same name."""
    return {name: getattr(request, name) for name in type(request).model_fields if name in _ENGINE}


_ENGINE = {field.name for field in fields(messages.SampleRequest)}


# ---- futures -----------------------------------------------------------------------------------


class FuturesTarget(Request):
    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: int = 0


def _few_results(ids: list[str]) -> list[str]:
    if len(ids) > MAX_CONFIRMED:
        raise ValueError(f"has {len(ids)} ids, and at most {MAX_CONFIRMED} are confirmed at once")
    return ids


class RetrieveFutures(Request):
    target: FuturesTarget
    prev_cursor: int = 0
    timeout: NotNegative | None = None
    retrieved_request_ids: Annotated[Many[str], AfterValidator(_few_results)] = []
