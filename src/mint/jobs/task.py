"""Load a task from ``file.py:Class`` or ``package.module:Class``.

Mistakes that the source shows are reported before the task and its imports are loaded.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from mint.config_error import ConfigError, closest
from mint.rewards.registry import load_file

_MOVED = {"mint.rl.dataset": "mint.rl.data.dataset"}  # names in older run directories
EXAMPLE = "Write it as demos/rl/adapters/tool_use.py:ToolUseEnvironment or package.module:Class."


@dataclass(frozen=True)
class TaskReference:
    """The location of a task's class.

    >>> TaskReference.read("tasks/mine.py:MyAdapter").name
    'MyAdapter'
    """

    place: str
    name: str

    @classmethod
    def read(cls, text: str) -> Self:
        place, _, name = text.rpartition(":")
        if not place or not name.isidentifier():
            raise ConfigError(f"task.adapter is {text!r}, which is not a class. {EXAMPLE}")
        return cls(_MOVED.get(place, place), name)

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    def source(self) -> Path | None:
        """Return the file of the source, or None if there is none."""
        if self.is_file:
            path = Path(self.place)
            if not path.is_file():
                raise ConfigError(f"task.adapter: there is no file {path} here. {EXAMPLE}")
            return path
        importable(Path.cwd())
        try:
            spec = importlib.util.find_spec(self.place)
        except (ModuleNotFoundError, ValueError):
            spec = None
        if spec is None:
            raise ConfigError(f"task.adapter: there is no module {self.place}. {EXAMPLE}")
        if spec.origin is None:
            raise self._no_class([])  # a namespace package
        return Path(spec.origin) if spec.origin.endswith(".py") else None

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Compare the arguments with the constructor in the source. Raises :class:`ConfigError`."""
        maker = self._method("__init__")
        if maker is None:
            return
        takes = maker.args
        positional = [each.arg for each in takes.args[1:]]
        known = [*positional, *(each.arg for each in takes.kwonlyargs)]
        for name in arguments:
            if name not in known and takes.kwarg is None:
                raise ConfigError(
                    f"task.arguments.{name}: {self.name} has no such argument."
                    f"{closest(name, known)} It accepts {', '.join(known) or 'none'}."
                )
        for name in positional[: len(positional) - len(takes.defaults)]:
            if name not in arguments:
                hint = f"Type: task.arguments.{name}=..."
                raise ConfigError(f"{self.name} requires an argument. {hint}")

    def is_environment(self) -> bool:
        """Return whether the class defines ``rollout``, by its source."""
        return self._method("rollout") is not None

    def _method(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the source of a method; None if the class is imported or created dynamically."""
        source = self.source()
        if source is None:
            return None
        try:
            tree = ast.parse(source.read_text(), str(source))
        except SyntaxError as error:
            raise ConfigError(f"task.adapter: {self.place} is not Python: {error}") from None
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        if not {self.name, "*"} & _names(tree):
            raise self._no_class(classes)
        body = classes[self.name].body if self.name in classes else []
        methods = [n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        return next((method for method in methods if method.name == name), None)

    def load(self) -> Any:
        if self.is_file:
            module = _load_module(Path(self.place).resolve())
        else:
            importable(Path.cwd())
            module = importlib.import_module(self.place)
        found = getattr(module, self.name, None)
        if not isinstance(found, type):
            raise self._no_class(n for n, value in vars(module).items() if isinstance(value, type))
        return found

    def _no_class(self, classes: Iterable[str]) -> ConfigError:
        hint = closest(self.name, classes)
        return ConfigError(f"task.adapter: {self.place} has no class {self.name}.{hint}")


def _names(tree: ast.Module) -> set[str]:
    """Return all names that a module defines or imports; ``*`` stands for any name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def importable(folder: Path) -> None:
    """Add a folder to the import path, as Python does with the folder of a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@cache
def _load_module(path: Path) -> Any:
    importable(path.parent)
    return load_file(path)
