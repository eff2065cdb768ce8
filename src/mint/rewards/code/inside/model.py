"""Load the program in the model's sandbox, and run what the checker asks for.

It shares its process with the program, so nothing it says is trusted: the checker compares, and
neither tests nor expected values ever come here.
"""

from __future__ import annotations

import _operator
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from mint.rewards.code.inside import wire
else:
    sys.path.insert(0, "/box")
    import wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _call_attribute(value: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(value, name)(*arguments, **keywords)


_NAMED: tuple[Callable[..., Any], ...] = (
    *(_operator.call, _operator.getitem, _operator.setitem, getattr, setattr),
    *(iter, next, len, str, repr),
)
_OPERATIONS = {each.__name__: each for each in _NAMED} | {"call attribute": _call_attribute}


def main() -> None:
    """Load /box/solution.py, then answer requests until the other side closes."""
    channel = wire.MessageSocket(int(sys.argv[1]), int(sys.argv[2]))
    held: list[Any] = []  # what the checker refers to by number: the program, and its objects

    def refer(value: Any) -> int:
        held.append(value)
        return len(held) - 1

    try:
        import solution  # type: ignore[import-not-found]  # /box/solution.py, the model's program
    except BaseException as error:
        channel.send({"failed": f"{type(error).__name__}: {error}"[:500]})
        return
    held.append(solution)
    channel.send({"ready": True})
    while True:
        request = channel.receive(follow=held.__getitem__)
        try:
            value = _OPERATIONS[request["do"]](*request["args"], **request["kwargs"])
            channel.send({"value": value}, refer)
        except Exception as error:
            channel.send({"raised": type(error).__name__, "text": str(error)[:500]})


if __name__ == "__main__":
    try:
        main()
    except wire.Gone:
        sys.exit(0)
