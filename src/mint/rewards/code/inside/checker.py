"""Run the tests in the checker's sandbox, against a program in another sandbox.

The program's functions are proxies here: a call sends plain arguments to the program and returns a
plain value. The values are compared here, where no code of the program runs.
"""

from __future__ import annotations

import _socket
import builtins
import math
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from mint.rewards.code.inside import wire
else:
    sys.path.insert(0, "/box")
    import wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Host:
    """The host process, which starts programs and receives the results."""

    def __init__(self, descriptor: int) -> None:
        self._socket = _socket.socket(fileno=descriptor)
        self.channel = wire.MessageSocket(descriptor)

    def tell(self, **message: Any) -> None:
        """Send a report."""
        self.channel.send(message)

    def fresh_program(self) -> int:
        """Return a socket to a newly started program."""
        self.tell(need="program")
        _, passed, _, _ = self._socket.recvmsg(1, _socket.CMSG_SPACE(4))
        if not passed:
            raise wire.Gone("no program could be started")
        return int.from_bytes(passed[0][2][:4], sys.byteorder)


class Program:
    """The program in the other sandbox."""

    def __init__(self, host: Host, seconds: float, limit: int) -> None:
        self._host, self._seconds, self._limit = host, seconds, limit
        self._channel: wire.MessageSocket | None = None
        self._deadline = 0.0
        self._failed: str | None = None
        self.module = RemoteObject(self, 0)

    def begin_test(self) -> None:
        """Set a new deadline, and start a new process if the last one has ended.

        A program that fails to load is not tried again.
        """
        if self._channel is None and self._failed is None:
            self._channel = wire.MessageSocket(self._host.fresh_program(), self._limit)
            self._deadline = time.monotonic() + self._seconds
            try:
                loaded = self._receive()
                self._failed = None if "ready" in loaded else str(loaded.get("failed"))[:500]
            except wire.Gone as error:
                self._failed = str(error)
        if self._failed is not None:
            raise wire.Gone(self._failed)
        self._deadline = time.monotonic() + self._seconds

    def drop(self) -> None:
        """Drop the process; the next test starts a new one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def ask(self, do: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Send an operation to the program, and return its result."""
        if self._channel is None:
            raise wire.Gone("the program is gone")
        request = {"do": do, "args": list(arguments), "kwargs": keywords}
        self._channel.send(request, _number)
        reply = self._receive()
        if "raised" in reply:
            raise _exception(str(reply["raised"]), str(reply.get("text")))
        if "value" not in reply:
            raise wire.Gone("the program broke the protocol")
        return reply["value"]

    def call(self, name: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Call one of the program's functions."""
        return self.ask("call attribute", self.module, name, *arguments, **keywords)

    def _receive(self) -> dict[str, Any]:
        assert self._channel is not None
        try:
            reply = self._channel.receive(self._deadline, lambda number: RemoteObject(self, number))
        except Exception:
            raise wire.Gone("the program broke the protocol") from None
        if not isinstance(reply, dict):
            raise wire.Gone("the program broke the protocol")
        return reply


class RemoteObject:
    """An object of the program.

    It equals only itself and supports neither comparison nor arithmetic: only plain values that the
    program has sent decide a test.
    """

    _program: Program
    _number: int

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._program.ask("call", self, *arguments, **keywords)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._program.ask("iter", self)
        while True:
            try:
                item = self._program.ask("next", iterator)
            except StopIteration:
                return
            yield item

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def _forward(operation: str) -> None:
    """Make a method of a proxy run in the program."""

    def method(self: RemoteObject, *arguments: Any) -> Any:
        return self._program.ask(operation, self, *arguments)

    setattr(RemoteObject, f"__{operation}__", method)


for _operation in ("getattr", "setattr", "getitem", "setitem", "len", "next", "str", "repr"):
    _forward(_operation)


class Global:
    """A name that the program defines: a function, a class, or a value."""

    def __init__(self, program: Program, name: str) -> None:
        self._program, self._name = program, name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._program.call(self._name, *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program.ask("getattr", self._program.module, self._name), name)

    def __eq__(self, other: object) -> bool:
        return bool(self._program.ask("getattr", self._program.module, self._name) == other)

    __hash__ = object.__hash__


def _number(value: Any) -> int:
    if isinstance(value, RemoteObject):
        return value._number
    raise wire.Unsupported(f"a {type(value).__name__} cannot be passed to the program")


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {text}")


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Compare plain values: lists and tuples count as equal, floats may differ by a tolerance."""
    if isinstance(value, float) or isinstance(expected, float):
        numbers = isinstance(value, int | float) and isinstance(expected, int | float)
        return numbers and math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(value, list | tuple) and isinstance(expected, list | tuple):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(same(a, b, tolerance) for a, b in pairs)
    if isinstance(value, dict) and isinstance(expected, dict):
        keys = value.keys() == expected.keys()
        return keys and all(same(value[key], expected[key], tolerance) for key in expected)
    return type(value) is not RemoteObject and bool(value == expected)


def verdict(test: dict[str, Any], program: Program, asserts: Any) -> dict[str, Any]:
    """Run one test; return whether it passed, and if not, why."""
    try:
        program.begin_test()
        if "assert" in test:
            getattr(asserts, f"test_{test['assert']}")()
        else:
            value = program.call(test["function"], *test["args"], **test["kwargs"])
            if not same(value, test["expected"], test["tolerance"]):
                raise AssertionError(f"returned {value!r}"[:200])
    except wire.Unsupported as error:
        return {"passed": False, "error": "", "unsupported": str(error)}
    except wire.Gone as error:
        program.drop()
        return {"passed": False, "error": str(error)[:500]}
    except (Exception, SystemExit) as error:
        return {"passed": False, "error": f"{type(error).__name__}: {error}"[:500]}
    return {"passed": True, "error": ""}


def main() -> None:
    """Run the tests that the host sends, and report each."""
    host = Host(int(sys.argv[1]))
    job = host.channel.receive()
    program = Program(host, job["seconds"], job["limit"])
    for name in job["names"]:
        setattr(builtins, name, Global(program, name))
    import asserts  # type: ignore[import-not-found]  # /box/asserts.py

    for index, test in enumerate(job["tests"]):
        host.tell(test=index, **verdict(test, program, asserts))
    host.tell(done=True)


if __name__ == "__main__":
    main()
