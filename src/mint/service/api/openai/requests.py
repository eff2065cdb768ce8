"""Requests of OpenAI clients. Unsupported fields are refused by name unless they have a value that
changes nothing; unknown fields are ignored."""

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json

from mint.engine.messages import MAX_SAMPLES
from mint.service.errors import UserError
from mint.service.wire.requests import Many, Request, Sampling, few_stops

MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024  # each is applied at every token, while others wait
_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_json": (),
    "guided_regex": (),
    "modalities": (["text"],),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "web_search_options": (),
}
_TOKEN_ID = re.compile(r"[0-9]{1,18}")


def read_token_ids(bias: Any) -> Any:
    """Convert the keys of a ``logit_bias``, which are strings in JSON, to token ids.

    >>> read_token_ids({"198": -100})
    {198: -100}
    """
    if not isinstance(bias, dict):
        return bias
    if len(bias) > MAX_BIASES:
        raise ValueError(f"has {len(bias)} tokens, and at most {MAX_BIASES} are allowed")
    for key, value in bias.items():
        if not _TOKEN_ID.fullmatch(str(key)):
            raise ValueError(
                f"the key {str(key)[:40]!r} is not a token id; use token ids of the model's "
                'tokenizer in quotes, such as {"198": -100}'
            )
        if not isinstance(value, int | float):
            raise ValueError(f"logit_bias.{key} must be a number from -100 to 100")
        if not -100 <= value <= 100:
            return {int(key): value}  # pydantic refuses it, without the others
    return {int(key): value for key, value in bias.items()}


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
# vLLM takes any positive number; beyond these bounds scores no longer fit float32.
RepetitionPenalty = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
LogitBias = Annotated[dict[int, Bias], BeforeValidator(read_token_ids)]


class StreamOptions(Request):
    include_usage: bool = False


class Inference(Sampling):
    """The common fields of both kinds of completions."""

    model: Annotated[str, Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=128)] = 1
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    logit_bias: LogitBias = Field(default_factory=dict)
    stop: Annotated[str | Many[str], AfterValidator(few_stops)] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        for key in _ASKS_NOTHING.keys() & data.keys() if isinstance(data, dict) else ():
            accepted = (*_ASKS_NOTHING[key], None)
            if data[key] not in accepted:
                raise ValueError(f"{key} is not supported by this service; leave it out")
        return data

    def stops(self) -> list[str]:
        """Return the stop strings, without empty ones."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        return [stop for stop in stops if stop]


class Completion(Inference):
    prompt: str | Many[int] | Many[str] | Many[Many[int]]
    max_tokens: Annotated[int, Field(ge=0)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False

    @property
    def alternatives(self) -> int | None:
        """How many other tokens to report beside each; None without logprobs."""
        return self.logprobs

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.prompt:
            raise ValueError("prompt is empty; it needs at least one token")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0, which makes sense only with echo=true")
        if len(self.prompts()) * self.n > MAX_SAMPLES:
            raise ValueError(
                f"prompt has {len(self.prompts())} prompts and n is {self.n}: more than "
                f"{MAX_SAMPLES} completions; send fewer at once"
            )
        if self.echo and self.stream:
            raise ValueError("echo is not supported together with stream")
        return self

    def prompts(self) -> list[str] | list[list[int]]:
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt  # type: ignore[return-value]


class Message(Request):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    role: Annotated[str, Field(min_length=1)]
    content: str | Many[dict[str, Any]] = ""
    tool_calls: Many[dict[str, Any]] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as templates expect it: content as a string, arguments of tool calls
        as objects."""
        message = self.model_dump(exclude_none=True)
        if not isinstance(self.content, str):
            message["content"] = "".join(_read_text(part) for part in self.content)
        if self.tool_calls:
            message["tool_calls"] = [_with_object(call) for call in self.tool_calls]
        return message


class ChatCompletion(Inference):
    echo: ClassVar = False
    messages: Annotated[Many[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    tools: Many[dict[str, Any]] | None = None
    tool_choice: str = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def alternatives(self) -> int | None:
        """How many other tokens to report beside each; None without logprobs."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_tokens == 0:
            raise ValueError("max_tokens must be at least 1")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        return self

    def tools_for_template(self) -> list[dict[str, Any]] | None:
        return self.tools or None if self.tool_choice == "auto" else None


def _read_text(part: dict[str, Any]) -> str:
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise UserError(
            f"messages: content of type {part.get('type')!r} is not supported. Send text only."
        )
    return str(part["text"])


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = from_json(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
