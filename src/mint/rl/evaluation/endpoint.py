"""A model behind an OpenAI-compatible endpoint, to evaluate: it answers as a sampler would.

Such a model has no tokens for us. Here the bytes of a conversation take their place, with control
characters around the messages, and logprobs are unknown (NaN): what it says can be scored, and
never trained on.
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mint import types
from mint.rewards.judges.endpoint import Connection, NoReply
from mint.rl.agents.rehearsal import ByteTokenizer

_BEGIN, _CONTENT, _END = "\x02", "\x1f", "\x03"
_MARKS = re.compile(f"[{_BEGIN}{_CONTENT}{_END}]")
_MESSAGE = re.compile(f"{_BEGIN}([^{_CONTENT}]*){_CONTENT}([^{_END}]*)")
_TOOLS = "tools"
_OF_A_CALL = ("id", "name", "arguments")
_CALL = re.compile(r"<tool_call>(\{[^<]*\})</tool_call>")
_CALLS = re.compile(rf"(?:{_CALL.pattern})+\Z")
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
        """Write messages one after the other; a reply goes where the last one is left open."""
        given = [{"role": _TOOLS, "content": json.dumps(tools)}] if tools else []
        text = "".join(_written(message) for message in (*given, *messages))
        text += _written({"role": "assistant"}).removesuffix(_END) if add_generation_prompt else ""
        return self.encode(text) if tokenize else text


def _written(message: Mapping[str, Any]) -> str:
    header = {name: value for name, value in message.items() if name != "content"}
    content = _MARKS.sub("", str(message.get("content") or ""))
    return f"{_BEGIN}{json.dumps(header)}{_CONTENT}{content}{_END}"


def read_request(prompt: str) -> dict[str, Any]:
    """Return what to ask an endpoint for: messages and tools, or the continuation of a text."""
    found = _MESSAGE.findall(prompt)
    if not found:
        return {"prompt": prompt}
    messages = [{**json.loads(header), "content": said} for header, said in found]
    tools = [json.loads(m["content"]) for m in messages if m["role"] == _TOOLS]
    spoken = [m for m in messages[:-1] if m["role"] != _TOOLS]  # the last is still to be said
    return {"messages": _with_calls(spoken), **({"tools": tools[0]} if tools else {})}


def _with_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the calls that the server parsed as it sent them, and their ids at the
    results: some servers accept results of tools in no other form."""
    found, ids = list[dict[str, Any]](), list[str]()
    for message in messages:
        if message["role"] == "tool" and ids:
            message = {**message, "tool_call_id": ids.pop(0)}
        elif message["role"] == "assistant":
            said, calls = _split_calls(message["content"])
            ids = [call["id"] for call in calls]
            message = {**message, "content": said, **({"tool_calls": calls} if calls else {})}
        found.append(message)
    return found


class EndpointClient:
    """Samples from a model behind ``url``, which ends before ``/chat/completions``."""

    def __init__(self, url: str, model: str, api_key: str | None = None, retries: int = 4) -> None:
        self.model = model
        self._connection = Connection(url, api_key, _TIMEOUT, retries, _RETRY_WAIT, _PARALLEL)
        self._tokenizer = EndpointTokenizer()

    def get_tokenizer(self) -> EndpointTokenizer:
        """Return what turns messages into this client's prompts."""
        return self._tokenizer

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> Any:
        """Return ``num_samples`` answers, each asked for by itself: many servers give only one."""
        request = read_request(self._tokenizer.decode(prompt.to_ints()))
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
            text = choice["text"] if "prompt" in request else _said(choice["message"])
        except (ValueError, KeyError, TypeError) as error:
            raise EndpointFailed(
                f"{self._connection.url} returned something other than a completion: "
                f"{reply.text[:200]}"
            ) from error
        cut = choice.get("finish_reason") == "length"
        tokens = self._tokenizer.encode(_MARKS.sub("", text)) + ([] if cut else [256])
        return SimpleNamespace(
            tokens=tokens,
            logprobs=[math.nan] * len(tokens),
            stop_reason="length" if cut else "stop",
        )


def _said(message: Mapping[str, Any]) -> str:
    """Return the text of a message; tool calls that the server parsed are serialised again, each
    with its id, by which it is known as one of them."""
    text = str(message.get("content") or "")
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        given = function["arguments"] or {}
        arguments = given if isinstance(given, str) else json.dumps(given)
        named = {"id": call.get("id") or f"call{index:05}", "name": function["name"]}
        written = json.dumps({**named, "arguments": arguments}).replace("<", "\\u003c")
        text += f"<tool_call>{written}</tool_call>"
    return text


def _split_calls(content: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what was said beside the calls that :func:`_said` wrote, and these calls.

    >>> call = {"id": "a1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    >>> _split_calls(_said({"content": "Look.", "tool_calls": [call]})) == ("Look.", [call])
    True
    """
    written = _CALLS.search(content)
    try:
        calls = [json.loads(call) for call in _CALL.findall(written[0])] if written else []
    except ValueError:
        calls = []
    if written is None or not all(isinstance(c.get(k), str) for c in calls for k in _OF_A_CALL):
        return content, []
    sent = [{"id": call.pop("id"), "type": "function", "function": call} for call in calls]
    return content[: written.start()] if sent else content, sent
