"""A model behind an OpenAI-compatible endpoint, to evaluate: it answers as a sampler would.

Tokens and logprobs of such a model are unknown. The bytes of a conversation stand in for tokens,
with control characters around the messages, and logprobs are NaN: answers can be scored, but not
trained on.
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

from mint import types
from mint.rewards.judges.endpoint import Connection, NoReply
from mint.rl.agents.rehearsal import ByteTokenizer

_BEGIN, _CONTENT, _END = "\x02", "\x1f", "\x03"
_MARKS = re.compile(f"[{_BEGIN}{_CONTENT}{_END}]")
_MESSAGE = re.compile(f"{_BEGIN}([^{_CONTENT}]*){_CONTENT}([^{_END}]*)")
_TOOLS = "tools"
_PARALLEL, _TIMEOUT, _RETRY_WAIT = 16, 120.0, 0.5
"""Requests at a time, seconds for each, and seconds before one is repeated."""


class EndpointFailed(RuntimeError):
    """The endpoint gave no usable answer."""


class EndpointTokenizer(ByteTokenizer):
    """Turns messages into bytes that :class:`EndpointClient` turns into messages again.

    >>> tokenizer = EndpointTokenizer()
    >>> tokens = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    >>> read_request(tokenizer.decode(tokens))["messages"]
    [{'role': 'user', 'content': 'Hi'}]
    """

    chat_template = "messages of an endpoint"

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenize: bool = True,
        add_generation_prompt: bool = True,
        tools: Any = None,
        **_: Any,
    ) -> Any:
        """Concatenate messages; the last one is left open for the reply."""
        given = [{"role": _TOOLS, "content": json.dumps(tools)}] if tools else []
        text = "".join(_written(message) for message in (*given, *messages))
        text += _written({"role": "assistant"}).removesuffix(_END) if add_generation_prompt else ""
        return self.encode(text) if tokenize else text


def _written(message: Mapping[str, Any]) -> str:
    header = {name: value for name, value in message.items() if name != "content"}
    content = _MARKS.sub("", str(message.get("content") or ""))
    return f"{_BEGIN}{json.dumps(header)}{_CONTENT}{content}{_END}"


Answered = Mapping[str, tuple[str, list[dict[str, Any]]]]
"""Texts of replies: what was said beside the calls that the server parsed, and these calls."""


def read_request(prompt: str, answered: Answered = MappingProxyType({})) -> dict[str, Any]:
    """Return the body of a request: messages and tools, or a text to continue.

    A reply that was ``answered`` has its calls as the server sent them, and the results have their
    ids: some servers accept results of tools in no other form.
    """
    found = _MESSAGE.findall(prompt)
    if not found:
        return {"prompt": prompt}
    request: dict[str, Any] = {"messages": []}
    ids: list[str] = []
    for header, content in found[:-1]:  # the last message is not complete yet
        message = {**json.loads(header), "content": content}
        if message["role"] == _TOOLS:
            request["tools"] = json.loads(content)
            continue
        if message["role"] == "tool" and ids:
            message["tool_call_id"] = ids.pop(0)
        elif message["role"] == "assistant":
            message["content"], calls = answered.get(content, (content, []))
            ids = [call["id"] for call in calls]
            message |= {"tool_calls": calls} if calls else {}
        request["messages"].append(message)
    return request


class EndpointClient:
    """Samples from a model behind ``url``, which ends before ``/chat/completions``."""

    def __init__(self, url: str, model: str, api_key: str | None = None, retries: int = 4) -> None:
        self.model = model
        self._connection = Connection(url, api_key, _TIMEOUT, retries, _RETRY_WAIT, _PARALLEL)
        self._tokenizer = EndpointTokenizer()
        self._answered: dict[str, tuple[str, list[dict[str, Any]]]] = {}

    def get_tokenizer(self) -> EndpointTokenizer:
        """Return what turns messages into this client's prompts."""
        return self._tokenizer

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> Any:
        """Return ``num_samples`` answers, each asked for by itself: many servers give only one."""
        request = read_request(self._tokenizer.decode(prompt.to_ints()), self._answered)
        request |= {
            "model": self.model,
            "max_tokens": sampling_params.max_tokens,
            "temperature": sampling_params.temperature,
        }
        stop, seed = sampling_params.stop, sampling_params.seed
        given = [stop] if isinstance(stop, str) else stop or []
        if texts := [each for each in given if isinstance(each, str)]:  # it knows no token ids
            request["stop"] = texts
        seeds = [{} if seed is None else {"seed": (seed + i) % 2**31} for i in range(num_samples)]
        return SimpleNamespace(
            sequences=await asyncio.gather(*(self._answer({**request, **own}) for own in seeds))
        )

    async def _answer(self, request: Mapping[str, Any]) -> Any:
        path = "completions" if "prompt" in request else "chat/completions"
        try:
            reply = await self._connection.post(path, dict(request))
        except NoReply as error:
            raise EndpointFailed(
                f"{self.model} at {self._connection.url} did not answer: {error}. Check the "
                "address, the model's name (model.base_model=...) and OPENAI_API_KEY."
            ) from None
        try:
            (choice, *_) = reply.json()["choices"]
            text = choice["text"] if "prompt" in request else self._read(choice["message"])
        except (ValueError, KeyError, TypeError) as error:
            raise EndpointFailed(
                f"{self._connection.url} returned something other than a completion: "
                f"{reply.text[:200]}"
            ) from error
        cut = choice.get("finish_reason") == "length"
        said = text.encode(errors="replace").decode()  # JSON may contain half a character
        tokens = self._tokenizer.encode(_MARKS.sub("", said)) + ([] if cut else [256])
        return SimpleNamespace(
            tokens=tokens,
            logprobs=[math.nan] * len(tokens),
            stop_reason="length" if cut else "stop",
        )

    def _read(self, message: Mapping[str, Any]) -> str:
        """Return the text of a message, in which tool calls that the server parsed are serialised
        again, and remember these calls."""
        text = said = _MARKS.sub("", str(message.get("content") or ""))
        calls = []
        for index, call in enumerate(message.get("tool_calls") or []):
            given = call["function"]["arguments"] or {}
            arguments = given if isinstance(given, str) else json.dumps(given)
            function = {"name": call["function"]["name"], "arguments": arguments}
            id_ = call.get("id") or f"call{index:05}"
            calls.append({"id": id_, "type": "function", "function": function})
            written = json.dumps({"id": id_, **function}).replace("<", "\\u003c")
            text += f"<tool_call>{written}</tool_call>"
        if calls:
            self._answered[text] = said, calls
        return text
