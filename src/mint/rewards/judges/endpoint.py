"""A chat model behind an OpenAI-compatible endpoint: retries, caching, a budget, JSON answers."""

import asyncio
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx

Message = Mapping[str, str]

_RETRIED = frozenset([408, 409, 425, 429, 500, 502, 503, 504])
_LONGEST_WAIT = 30.0
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"
"""The limit of an answer: of all servers, and of OpenAI's newer models, which refuse the former."""
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


class JudgeFailed(RuntimeError):
    """The judge gave no usable answer. This never becomes a score."""


@dataclass
class Budget:
    """Limits of an endpoint: requests sent, and tokens in and out. None means no limit."""

    requests: int | None = None
    tokens: int | None = None
    spent_requests: int = 0
    spent_tokens: int = 0

    def spend(self) -> None:
        """Count one request, or raise :class:`JudgeFailed`."""
        limits = ((self.requests, self.spent_requests), (self.tokens, self.spent_tokens))
        if any(limit is not None and spent >= limit for limit, spent in limits):
            raise JudgeFailed(
                f"The judge's budget is spent: {self.spent_requests} requests and "
                f"{self.spent_tokens} tokens. Raise Budget(requests=..., tokens=...)."
            )
        self.spent_requests += 1


@dataclass
class ChatEndpoint:
    """The endpoint of a judge. ``url`` ends before ``/chat/completions``.

    Equal requests are sent once: responses are cached in memory and, with ``cache``, in a folder.
    At most ``parallel`` requests are in flight, whichever judges and groups of answers need them.
    """

    model: str
    url: str = "https://api.openai.com/v1"
    api_key: str | None = field(default=None, repr=False)
    temperature: float = 0.0
    max_tokens: int = 512
    timeout: float = 60.0
    retries: int = 4
    retry_wait: float = 0.5
    parallel: int = 8
    cache: Path | None = None
    cache_size: int = 10_000
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if self.parallel < 1 or self.retries < 0 or self.timeout <= 0:
            raise ValueError("ChatEndpoint needs parallel >= 1, retries >= 0 and timeout > 0.")
        how = self.timeout, self.retries, self.retry_wait, self.parallel
        self._connection = Connection(self.url, self.api_key, *how)
        self._kept: dict[str, str] = {}
        self._asking: dict[str, asyncio.Future[str]] = {}

    async def ask(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None
    ) -> str:
        """Return the answer to a conversation; equal requests are sent once."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        if schema is not None:
            wanted = {"name": "answer", "schema": dict(schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        key = hashlib.sha256(json.dumps([self.url, body], sort_keys=True).encode()).hexdigest()
        if (kept := self._recall(key)) is not None:
            return kept
        asking = self._asking.get(key)
        if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
            asking = self._asking[key] = asyncio.ensure_future(self._answered(key, body))
        return await asyncio.shield(asking)  # others may wait for it too

    async def ask_json(
        self, system: str, parts: Sequence[str], schema: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the answer as a JSON object that follows ``schema``; ask again once if not."""
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": "\n\n".join(parts)},
        ]
        answer = await self.ask(messages, schema)
        try:
            return read_object(answer, schema)
        except JudgeFailed as error:
            complaint = f"{error} Answer again with only the JSON object."
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": complaint})
            return read_object(await self.ask(messages, schema), schema)

    async def _answered(self, key: str, body: dict[str, Any]) -> str:
        try:
            reply = await self._connection.post("chat/completions", body, self.budget.spend)
            answer = self._content(reply)
            self._keep(key, answer)
            return answer
        except NoReply as error:
            raise JudgeFailed(
                f"The judge {self.model} at {self.url} did not answer: {error}. "
                "Check the address, the key and the model name."
            ) from None
        finally:
            self._asking.pop(key, None)

    def _content(self, reply: httpx.Response) -> str:
        try:
            data = reply.json()
            content = data["choices"][0]["message"]["content"]
            self.budget.spent_tokens += int((data.get("usage") or {}).get("total_tokens") or 0)
        except (ValueError, KeyError, IndexError, TypeError):
            raise JudgeFailed(
                f"The judge at {self.url} returned something other than a chat completion: "
                f"{reply.text[:200]}"
            ) from None
        if not isinstance(content, str) or not content.strip():
            raise JudgeFailed(f"The judge {self.model} returned an empty answer.")
        return content

    def _recall(self, key: str) -> str | None:
        if key in self._kept:
            return self._kept[key]
        if self.cache is not None and (path := self.cache / key).is_file():
            return path.read_text(encoding="utf-8")
        return None

    def _keep(self, key: str, answer: str) -> None:
        self._kept[key] = answer
        if len(self._kept) > self.cache_size:
            del self._kept[next(iter(self._kept))]  # the oldest
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
            part = self.cache / f"{key}.{os.getpid()}.part"
            part.write_text(answer, encoding="utf-8")
            part.replace(self.cache / key)


class NoReply(RuntimeError):
    """An endpoint did not reply, or refused; the message is the last problem."""


@dataclass(repr=False)
class Connection:
    """Requests to one endpoint: at most ``parallel`` in flight, and transient errors are retried.

    The key is that of the environment (``OPENAI_API_KEY``) if none is given.
    """

    url: str
    api_key: str | None
    timeout: float
    retries: int
    retry_wait: float
    parallel: int

    def __post_init__(self) -> None:
        key = self.api_key or os.environ.get("OPENAI_API_KEY")
        self.url = self.url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._takes_new_limit = False
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._places = WeakKeyDictionary()

    async def post(
        self, path: str, body: dict[str, Any], count: Callable[[], None] = lambda: None
    ) -> httpx.Response:
        """Return a successful reply, or raise :class:`NoReply`. ``count`` is called before every
        request.

        What is refused for a parameter is sent again: without ``response_format``, or with
        ``max_completion_tokens`` in place of ``max_tokens``, in later requests too.
        """
        loop = asyncio.get_running_loop()
        places = self._places.setdefault(loop, asyncio.Semaphore(self.parallel))
        client = httpx.AsyncClient(timeout=self.timeout, headers=self._headers)
        problem, attempt = "no request was sent", 0
        async with places, client:
            if self._takes_new_limit:
                body[_NEW_LIMIT] = body.pop(_LIMIT)
            while attempt <= self.retries:
                count()
                try:
                    reply = await client.post(f"{self.url}/{path}", json=body)
                except httpx.HTTPError as error:
                    problem = f"{type(error).__name__}: {error}"
                else:
                    if reply.status_code < 300:
                        self._takes_new_limit = _NEW_LIMIT in body
                        return reply
                    if reply.status_code == 400 and _adapt(body, reply.text):
                        continue
                    problem = f"HTTP {reply.status_code}: {reply.text[:200]}"
                    if reply.status_code not in _RETRIED:
                        break
                if attempt < self.retries:
                    wait = self.retry_wait * 2**attempt * (0.5 + random.random())
                    await asyncio.sleep(min(_LONGEST_WAIT, wait))
                attempt += 1
        raise NoReply(problem)


def _adapt(body: dict[str, Any], complaint: str) -> bool:
    """Change a parameter that an endpoint refuses; return False when there is none to change."""
    named = _NEW_LIMIT in complaint or (_LIMIT in complaint and "unsupported" in complaint.lower())
    if named and _LIMIT in body:
        body[_NEW_LIMIT] = body.pop(_LIMIT)
        return True
    return body.pop("response_format", None) is not None


def read_object(answer: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object of an answer, checked against the schema.

    >>> read_object('Sure: {"a": 1}', {"type": "object", "required": ["a"]})
    {'a': 1}
    """
    jsonschema: Any = import_module("jsonschema")
    found = _OBJECT.search(answer)
    if found is None:
        raise JudgeFailed(f"The judge's answer has no JSON object in it: {answer[:200]!r}.")
    try:
        value = json.loads(found[0])
        jsonschema.validate(value, dict(schema))
    except (ValueError, RecursionError) as error:
        raise JudgeFailed(f"The judge's answer is not JSON ({error}): {answer[:200]}") from None
    except jsonschema.ValidationError as error:
        said = f"The judge's answer does not match the schema: {error.message}."
        raise JudgeFailed(said) from None
    assert isinstance(value, dict)
    return value
