"""Quotas of a key: runs, sessions, samplers, checkpoints, bytes and tokens in flight."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Self

from pydantic import ByteSize, Field, PositiveInt, TypeAdapter, ValidationError

from mint.service.admin.settings import Settings
from mint.service.errors import ApiError, UserError

UNLIMITED, DEFAULT = "unlimited", "default"
_COUNT, _BYTES = TypeAdapter(PositiveInt), TypeAdapter(Annotated[ByteSize, Field(gt=0)])


@dataclass(frozen=True)
class Quota:
    """The limits of one key, as the settings ``quota_…`` describe them. None means no limit."""

    runs: int | None = None
    sessions: int | None = None
    samplers: int | None = None
    checkpoints: int | None = None
    tokens_in_flight: int | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, settings: Settings, own: Mapping[str, int | None]) -> Self:
        """Return a key's own limits, and the configured ones where it has none."""
        return cls(**{name: own.get(name, getattr(settings, f"quota_{name}")) for name in LIMITS})

    def refuse_run(self, key: str, held: int) -> None:
        """Raise ApiError 403 if a key that holds so many runs may not create another."""
        if self.runs is not None and held >= self.runs:
            raise ApiError(
                403,
                f"The key {key!r} has {_many(held, 'run')}, and its quota is {self.runs}. Unload "
                "one that is finished: mint runs unload RUN (`mint runs list` shows yours; its "
                f"checkpoints are kept).{_raise(key, 'runs')}",
            )

    def refuse_session(self, key: str, kept_s: float, held: int) -> None:
        """Raise ApiError 403 if a key that holds so many sessions may not create another."""
        if self.sessions is not None and held >= self.sessions:
            raise ApiError(
                403,
                f"The key {key!r} has {_many(held, 'session')} without runs, and its quota is "
                f"{self.sessions}. Create fewer, for example one client for a whole script: a "
                f"session is deleted when it was silent for {kept_s / 3600:g} hours."
                f"{_raise(key, 'sessions')}",
            )

    def refuse_checkpoint(self, key: str, held: int, held_bytes: int, more_bytes: int) -> None:
        """Raise UserError if another checkpoint of ``more_bytes`` would exceed the quota."""
        if self.checkpoints is not None and held >= self.checkpoints:
            raise UserError(
                f"The key {key!r} has {_many(held, 'checkpoint')}, and its quota is "
                f"{self.checkpoints}.{_DELETE}{_raise(key, 'checkpoints')}"
            )
        if self.bytes is not None and held_bytes + more_bytes > self.bytes:
            held_size, size, limit = map(readable_bytes, (held_bytes, more_bytes, self.bytes))
            raise UserError(
                f"The checkpoints of the key {key!r} take {held_size}, this one takes {size}, and "
                f"the quota is {limit}.{_DELETE}{_raise(key, 'bytes')}"
            )

    def refuse_samplers(self, key: str, in_use: int) -> None:
        """Raise ApiError 429 while a key uses as many other samplers as its quota allows."""
        if self.samplers is not None and in_use >= self.samplers:
            raise ApiError(
                429,
                f"The key {key!r} is sampling from {_many(in_use, 'sampler')}, and its quota is "
                f"{self.samplers}; retry when one of them is idle.{_raise(key, 'samplers')}",
            )

    def refuse_tokens(self, key: str, in_flight: int, more: int) -> None:
        """Raise ApiError 429 if a sample does not fit now, or UserError if it never will."""
        limit = self.tokens_in_flight
        if limit is None or in_flight + more <= limit:
            return
        if more > limit:
            raise UserError(
                f"This request may use {more} tokens (prompt, and max_tokens for each sample), "
                f"and the key {key!r} may have {limit} in flight. Ask for fewer samples or a "
                f"smaller max_tokens.{_raise(key, 'tokens-in-flight')}"
            )
        raise ApiError(
            429,
            f"The key {key!r} has {in_flight} tokens in flight and this request may use {more} "
            f"more, beyond its quota of {limit}; retry when others are done.",
        )


LIMITS = tuple(field.name for field in fields(Quota))
_DELETE = (
    " Delete some: mint checkpoints delete PATH, or mint checkpoints prune (`mint checkpoints list`"
    " shows yours)."
)


def parse_limit(name: str, text: str) -> int | None:
    """Parse a limit as it is typed.

    >>> parse_limit("bytes", "10GB"), parse_limit("runs", "4"), parse_limit("runs", "unlimited")
    (10000000000, 4, None)
    """
    if text == UNLIMITED:
        return None
    with contextlib.suppress(ValidationError):
        return int((_BYTES if name == "bytes" else _COUNT).validate_python(text))
    example = "10GB or 500MiB" if name == "bytes" else "a positive integer"
    raise ValueError(
        f"{text!r} is not a valid quota of {name}. Write {example}, {UNLIMITED}, or {DEFAULT} for "
        "the service's configured limit."
    )


def change(own: Mapping[str, int | None], typed: Mapping[str, str]) -> dict[str, int | None]:
    """Return a key's own limits, changed as typed."""
    for name in typed:
        if name not in LIMITS:
            raise ValueError(f"There is no quota {name!r}. Use one of: {', '.join(LIMITS)}.")
    kept = {name: limit for name, limit in own.items() if name not in typed}
    set_now = {name: parse_limit(name, t) for name, t in typed.items() if t != DEFAULT}
    return kept | set_now


def _raise(key: str, option: str) -> str:
    return f" Or raise it on the service's machine: mint keys quota {key} --{option} N"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def readable_bytes(size: int) -> str:
    """Return a size as quotas are typed.

    >>> readable_bytes(10_000_000_000)
    '10.0GB'
    """
    return ByteSize(size).human_readable(decimal=True)
