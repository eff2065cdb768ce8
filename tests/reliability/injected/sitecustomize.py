"""Faults in a service and its workers: Python imports this file at start when it is on the path.

``MINT_TEST_FAULTS`` is a JSON list. Each fault names a function as ``module:qualified.name``, the
number of the call at which it happens, and what happens: the process is killed before or after the
call, or stopped, or an OSError or MemoryError is raised before or after it. A fault happens once:
it leaves a mark in a file.
"""

from __future__ import annotations

import errno
import functools
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import signal
import sys
from typing import Any


class _Fault:
    def __init__(self, point: str, call: int, action: str, mark: str) -> None:
        self.module, _, self.name = point.partition(":")
        self._call, self._action, self._mark = call, action, mark
        self._calls = itertools.count(1)

    def install(self, module: Any) -> None:
        *path, name = self.name.split(".")
        owner = functools.reduce(getattr, path, module)
        original = owner.__dict__[name] if path else getattr(owner, name)

        @functools.wraps(original)
        def faulty(*args: Any, **kwargs: Any) -> Any:
            is_due = next(self._calls) == self._call and self._is_first()
            is_after = self._action.endswith(" after")
            if is_due and not is_after:
                self._act()
            result = original(*args, **kwargs)
            if is_due and is_after:
                self._act()
            return result

        setattr(owner, name, faulty)

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _act(self) -> None:
        if self._action.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._action.startswith("MemoryError"):
            raise MemoryError
        else:
            number = getattr(errno, self._action.removesuffix(" after"))
            raise OSError(number, os.strerror(number))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, faults: list[_Fault]) -> None:
        self._faults = faults

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        mine = [fault for fault in self._faults if fault.module == name]
        spec = importlib.machinery.PathFinder.find_spec(name, path) if mine else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for fault in mine:
                fault.install(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "MINT_TEST_FAULTS" in os.environ:
    sys.meta_path.insert(
        0, _Finder([_Fault(**fault) for fault in json.loads(os.environ["MINT_TEST_FAULTS"])])
    )
