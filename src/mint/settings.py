"""Settings are pydantic models. Here: messages for mistakes, and environment variables.

A field's description is its line in the documentation and in ``--help``. Its variable is a prefix
and its name, or the ``env`` of its ``json_schema_extra``; None means that it has none.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from mint.config_error import ConfigError, closest

_UNKNOWN = ("extra_forbidden", "no_such_attribute")
_WANTED = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "above {gt:g}",
    "less_than_equal": "{le:g} or less",
    "string_too_short": "{min_length} characters or more",
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a string",
    "path": "a path",
    "byte": "a size, such as 10GB",
    "dict": "names with values",
    "mapping": "names with values",
}
"""What a value must be, by pydantic's type of error or its first word."""


def setting(default: Any, description: str, *, env: str | None = None, **limits: Any) -> Any:
    """Return a field with limits such as ``ge``; ``env`` is its variable if not the usual one."""
    extra: Any = {"env": env} if env else None
    return Field(default, description=description, json_schema_extra=extra, **limits)


def listed(kind: str, count: int | None = None) -> BeforeValidator:
    """Accept a list or a tuple of a kind, such as strings, where the type is a tuple."""

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise PydanticCustomError(f"not_{kind}", "a list of {kind}", {"kind": kind})
        if count is not None and len(value) != count:
            raise PydanticCustomError("count", "{count} values", {"count": count})
        return tuple(value)

    return BeforeValidator(convert)


Strings = Annotated[tuple[str, ...], listed("strings")]


@contextmanager
def reporting(
    known: Iterable[str],
    place: Callable[[str], str] = lambda name: "",
    hint: Callable[[ErrorDetails], str] = lambda fault: "",
) -> Iterator[None]:
    """Raise the errors of a model as a ConfigError: one line each, after the place of its setting.

    >>> class Example(BaseModel):
    ...     steps: int = Field(5, ge=1)
    >>> with reporting(Example.model_fields):
    ...     Example(steps=0)
    Traceback (most recent call last):
    mint.rl.ConfigError: steps is 0; it must be 1 or more.
    """
    try:
        yield
    except ValidationError as error:
        lines = [_explain(each, known, place) + hint(each) for each in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def _explain(fault: ErrorDetails, known: Iterable[str], place_of: Callable[[str], str]) -> str:
    name = ".".join(part for part in fault["loc"] if isinstance(part, str))
    place = place_of(str(fault["loc"][0]))
    if fault["type"] in _UNKNOWN:
        return f"{place}{'t' if place else 'T'}here is no setting {name!r}.{closest(name, known)}"
    return f"{place}{name} is {fault['input']!r}; it must be {_wanted(fault)}"


def _wanted(fault: ErrorDetails) -> str:
    kind, limits = fault["type"], fault.get("ctx", {})
    if kind == "literal_error":
        choices = re.findall(r"'([^']+)'", limits["expected"])
        return f"one of {', '.join(choices)}.{closest(str(fault['input']), choices)}"
    wanted = _WANTED.get(kind) or _WANTED.get(kind.partition("_")[0])
    said = fault["msg"].removeprefix("Input should be ")
    return f"{wanted.format(**limits) if wanted else said}."


def variables(model: type[BaseModel], prefix: str) -> dict[str, str]:
    """Return the environment variable of each setting that has one."""
    found = {}
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        own = extra if isinstance(extra, dict) else {}
        found[name] = own.get("env", f"{prefix}{name.upper()}")
    return {name: str(variable) for name, variable in found.items() if variable is not None}


def read_variables(
    model: type[BaseModel], prefix: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the settings of the environment, for pydantic's lax mode. Empty variables are unset.

    >>> class Example(BaseModel):
    ...     stop: Strings = ()
    ...     weights: dict[str, float] | None = None
    >>> read_variables(Example, "MINT_", {"MINT_STOP": "a, b", "MINT_WEIGHTS": "x=1"})
    {'stop': ('a', 'b'), 'weights': {'x': '1'}}
    """
    return {
        name: _from_text(model.model_fields[name], environment[variable], variable)
        for name, variable in variables(model, prefix).items()
        if environment.get(variable)
    }


def plain_type(field: FieldInfo) -> Any:
    """Return the type of a setting without None and without its parameters, such as tuple."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_origin(kind) or kind


def _from_text(field: FieldInfo, text: str, variable: str) -> Any:
    if text.lower() == "none" and NoneType in get_args(field.annotation):
        return None
    kind = plain_type(field)
    if kind is tuple:
        return _strings(text)
    if kind not in (dict, Mapping):
        return text
    pairs = {}
    for entry in (part.strip() for part in text.split(",") if part.strip()):
        name, _, value = (part.strip() for part in entry.partition("="))
        if not name or not value:
            form = "NAME=FOLDER" if Path in get_args(field.annotation) else "NAME=NUMBER"
            raise ConfigError(f"{variable} has {entry!r}: write {form},{form}")
        pairs[name] = value
    return pairs


def _strings(text: str) -> tuple[Any, ...]:
    r"""Read several values from one variable: ``a,b``, or as in JSON ``["a", "b"]``, or ``"a"``.

    >>> _strings(r"\n,Q:"), _strings(r'["\n", ","]'), _strings("'Q:'")
    (('\n', 'Q:'), ('\n', ','), ('Q:',))
    """
    if re.fullmatch(r"\[.*\]", text, re.DOTALL):
        try:
            return tuple(json.loads(text, strict=False))
        except ValueError:
            return _strings(text[1:-1])
    parts = [part.strip(" ") for part in text.split(",")]  # a new line may be meant
    bare = [re.sub(r"""^(["'])(.*)\1$""", r"\2", part, flags=re.DOTALL) for part in parts]
    return tuple(unescaped(part) for part in bare if part)


def unescaped(text: str) -> str:
    r"""Read a string from a shell, where ``\n``, ``\t``, ``\r`` and ``\\`` are escapes.

    >>> unescaped(r"\nQ:"), unescaped(r"\\n")
    ('\nQ:', '\\n')
    """
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    return re.sub(r"\\([ntr\\])", lambda found: escapes[found[1]], text)
