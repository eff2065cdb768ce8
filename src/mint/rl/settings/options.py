"""Settings that check themselves: a default, a sentence, limits, and a name in the shell."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import Field, field
from typing import Any, Union, get_args, get_origin

_TRUE = frozenset(["1", "true", "yes", "on"])
_FALSE = frozenset(["0", "false", "no", "off"])


class ConfigError(ValueError):
    """A setting that cannot be right. The text names it, and what would be."""

    __module__ = "mint.rl"  # the name that users import


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    env: str | None = None,
) -> Any:
    """A field with its default and one sentence; ``low`` and ``high`` belong to the range."""
    limits = {"low": low, "above": above, "high": high, "choices": choices}
    return field(default=default, metadata={"help": help, "env": env, **limits})


def closest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name, or nothing.

    >>> closest("tempreature", ["steps", "temperature"])
    " Did you mean 'temperature'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def checked(option: Field[Any], kind: Any, value: Any) -> Any:
    """The value as the option's type, or :class:`ConfigError`."""
    converted = _converted(option.name, kind, value)
    limits = option.metadata
    for number in _numbers(converted):
        low, above, high = limits["low"], limits["above"], limits["high"]
        if not math.isfinite(number):
            raise ConfigError(f"{option.name} is {number}; it must be a finite number.")
        if low is not None and number < low:
            raise ConfigError(f"{option.name} is {number}; it must be {low:g} or more.")
        if above is not None and number <= above:
            raise ConfigError(f"{option.name} is {number}; it must be above {above:g}.")
        if high is not None and number > high:
            raise ConfigError(f"{option.name} is {number}; it must be {high:g} or less.")
    choices = limits["choices"]
    words = converted if isinstance(converted, tuple) else (converted,)
    for word in words if choices else ():
        if word not in choices:
            raise ConfigError(
                f"{option.name} is {word!r}; it must be one of {', '.join(choices)}."
                f"{closest(str(word), choices)}"
            )
    return converted


def parsed(option: Field[Any], kind: Any, text: str, source: str) -> Any:
    """The value that a text from the shell stands for."""
    try:
        if text.lower() == "none" and type(None) in get_args(kind):
            return None
        return checked(option, kind, _from_text(_plain(kind), text))
    except ConfigError as error:
        raise ConfigError(f"{source}={text!r}: {error}") from None
    except ValueError:
        raise ConfigError(
            f"{source}={text!r} is not {_named(kind)}. Its default is {option.default!r}."
        ) from None


def unescaped(text: str) -> str:
    r"""A string from a shell, where ``\n``, ``\t``, ``\r`` and ``\\`` are escapes.

    >>> unescaped(r"\nQ:"), unescaped(r"\\n")
    ('\nQ:', '\\n')
    """
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    return re.sub(r"\\([ntr\\])", lambda found: escapes[found[1]], text)


def _texts(text: str) -> tuple[str, ...]:
    r"""Several strings from one variable: ``a,b``, or as in JSON ``["a", "b"]``, or ``"a"``.

    >>> _texts(r"\n,Q:"), _texts(r'["\n", ","]'), _texts("'Q:'")
    (('\n', 'Q:'), ('\n', ','), ('Q:',))
    """
    if re.fullmatch(r"\[.*\]", text, re.DOTALL):
        try:
            listed = json.loads(text, strict=False)
        except ValueError:
            return _texts(text[1:-1])
        if all(isinstance(each, str) for each in listed):
            return tuple(listed)
    parts = [part.strip(" ") for part in text.split(",")]  # a new line may be meant
    bare = [re.sub(r"""^(["'])(.*)\1$""", r"\2", part, flags=re.DOTALL) for part in parts]
    return tuple(unescaped(part) for part in bare if part)


def _from_text(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if get_origin(kind) is tuple and get_args(kind)[0] is str:
        return _texts(text)
    if get_origin(kind) is tuple:
        parts = [part.strip(" ") for part in text.split(",")]
        return tuple(get_args(kind)[0](part) for part in parts if part)
    if get_origin(kind) in (dict, Mapping):
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        return {name.strip(): float(value) for name, _, value in pairs}
    return kind(text)


def _converted(name: str, kind: Any, value: Any) -> Any:
    if value is None:
        if type(None) in get_args(kind):
            return None
        raise ConfigError(f"{name} is None; it must be {_named(kind)}.")
    wanted = _plain(kind)
    match wanted, value:
        case _ if wanted is bool and isinstance(value, bool):
            return value
        case _ if wanted is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        case _ if wanted is float and isinstance(value, int | float) and type(value) is not bool:
            return float(value)
        case _ if wanted is str and isinstance(value, str):
            return value
        case _ if get_origin(wanted) is tuple and isinstance(value, tuple | list):
            return _converted_tuple(name, wanted, value)
        case _ if get_origin(wanted) in (dict, Mapping) and isinstance(value, Mapping):
            if all(isinstance(number, int | float) for number in value.values()):
                return {str(key): float(number) for key, number in value.items()}
    raise ConfigError(f"{name} is {value!r}; it must be {_named(kind)}.")


def _converted_tuple(name: str, kind: Any, value: tuple[Any, ...] | list[Any]) -> tuple[Any, ...]:
    parts = get_args(kind)
    if parts[-1] is not Ellipsis and len(parts) != len(value):
        raise ConfigError(f"{name} is {value!r}; it must be {len(parts)} values.")
    return tuple(_converted(name, parts[0], item) for item in value)


def _plain(kind: Any) -> Any:
    """A type without its ``| None``."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _named(kind: Any) -> str:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    plain = _plain(kind)
    if get_origin(plain) is tuple:
        return "a list of " + names[get_args(plain)[0]].removeprefix("a ") + "s"
    return names.get(plain, "names with numbers")


def _numbers(value: Any) -> list[float]:
    if isinstance(value, bool | str) or value is None:
        return []
    if isinstance(value, tuple):
        return [number for item in value for number in _numbers(item)]
    if isinstance(value, Mapping):
        return list(value.values())
    return [value]
