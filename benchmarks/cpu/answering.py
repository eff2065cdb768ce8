"""A side's end of the conversation: commands come in as lines of JSON, answers go out as such.

It needs the standard library alone, since every side runs it in its own environment.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO

Handler = Callable[..., dict[str, Any]]


@contextmanager
def private_stdout() -> Iterator[TextIO]:
    """Yield the real standard output; whatever libraries print goes to standard error."""
    real = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(real, "w") as stream:
        yield stream


def commands() -> Iterator[dict[str, Any]]:
    """Yield the commands that arrive, until the other side closes."""
    for line in sys.stdin:
        yield json.loads(line)


def send(stream: TextIO, answer: Mapping[str, Any]) -> None:
    """Send one answer."""
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def serve(prepare: Callable[[], tuple[dict[str, Handler], dict[str, Any]]]) -> None:
    """Prepare a side, say so with some facts about it, and run commands until the end.

    ``{"do": NAME, ...}`` calls the handler of that name with the rest as keyword arguments.
    """
    with private_stdout() as stream:
        try:
            handlers, facts = prepare()
        except Exception as error:
            traceback.print_exc()
            send(stream, {"error": f"{type(error).__name__}: {error}"})
            sys.exit(1)
        send(stream, {"ready": facts})
        for command in commands():
            try:
                send(stream, handlers[command.pop("do")](**command))
            except Exception as error:
                traceback.print_exc()
                send(stream, {"error": f"{type(error).__name__}: {error}"})


def versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of some packages."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
