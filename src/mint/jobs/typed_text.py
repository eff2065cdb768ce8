"""Strings typed in a shell: ``\\n`` is a newline, and quotes for Hydra's grammar are added."""

import re
from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from mint.settings import unescaped

STOP, ARGUMENTS = "sampling.stop", "task.arguments"


def readable(text: str, parser: OverridesParser) -> str:
    """Return an override that Hydra can parse: a string that it cannot parse is quoted.

    >>> parser = OverridesParser.create()
    >>> print(readable("sampling.stop=</answer>", parser))
    sampling.stop="</answer>"
    >>> print(readable("task.arguments.template=Q: {question}", parser))
    task.arguments.template="Q: {question}"
    >>> print(readable("training.steps=</answer>", parser))
    training.steps=</answer>
    """
    key, equals, value = text.partition("=")
    name = key.lstrip("+")
    if not equals or not (name == STOP or name.startswith(f"{ARGUMENTS}.")):
        return text
    if name == STOP:
        value = value.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    text = f"{key}={value}"
    try:
        parser.parse_override(text)
    except HydraException:
        if value[:1] not in "[{\"'":
            return f"{key}={QuotedString(value, Quote.double).with_quotes()}"
    return text


def read_escapes(job: dict[str, Any], key: str) -> None:
    """Replace the escapes in the strings of a setting that was typed."""
    if key == STOP:
        stop = job["sampling"]["stop"]
        texts = [stop] if isinstance(stop, str) else stop
        if isinstance(texts, list):
            texts = [unescaped(each) if isinstance(each, str) else each for each in texts]
        job["sampling"]["stop"] = texts
    elif key == ARGUMENTS or key.startswith(f"{ARGUMENTS}."):
        place, names = job["task"], key.split(".")[1:]
        for name in names[:-1]:
            place = place[name]
        place[names[-1]] = _with_new_lines(place[names[-1]])


def _with_new_lines(value: Any) -> Any:
    r"""Return a value with ``\n`` as a newline; ``\\n`` stands for the two characters.

    >>> _with_new_lines({"template": r"Q: {question}\nA:"})
    {'template': 'Q: {question}\nA:'}
    """
    if isinstance(value, str):
        return re.sub(r"(\\?)\\n", lambda found: "\\n" if found[1] else "\n", value)
    if isinstance(value, Mapping):
        return {name: _with_new_lines(each) for name, each in value.items()}
    return [_with_new_lines(each) for each in value] if isinstance(value, list) else value
