"""The ``aliases`` in a configuration file, changed without touching the rest of the file."""

import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from mint.config_error import ConfigError
from mint.service.admin.configuration import read_file

_KEY = "aliases"


def read_aliases(file: Path) -> dict[str, Path]:
    """Return the aliases of a file; none if there is no file."""
    aliases = read_file(file).get(_KEY) or {}
    if not isinstance(aliases, dict):
        raise ConfigError(f"{file}: {_KEY} must map names to folders. Correct it first.")
    return {str(name): Path(str(folder)) for name, folder in aliases.items()}


def write_aliases(file: Path, aliases: Mapping[str, Path]) -> None:
    """Replace the aliases; keep comments and everything else in the file."""
    text = file.read_text() if file.is_file() else ""
    file.parent.mkdir(0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(with_aliases(text, aliases))
    draft.replace(file)


def with_aliases(text: str, aliases: Mapping[str, Path]) -> str:
    """Return YAML text with its aliases replaced.

    >>> print(with_aliases("port: 1  # ours", {"a/b": Path("/m")}))
    port: 1  # ours
    aliases:
      a/b: /m
    <BLANKLINE>
    """
    block = ""
    if aliases:
        block = yaml.safe_dump({_KEY: {name: str(path) for name, path in aliases.items()}})
    start, end = _span(text)
    before, after = text[:start], text[end:]
    if before and not before.endswith("\n"):
        before += "\n"
    return before + block + after.removeprefix("\n")


def _span(text: str) -> tuple[int, int]:
    """Return the position of the key and its value; the end of the text if there is none."""
    root = yaml.compose(text)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == _KEY:
            line_end = text.find("\n", _find_end(value))
            return key.start_mark.index, len(text) if line_end < 0 else line_end
    return len(text), len(text)


def _find_end(node: yaml.Node) -> int:
    """Return where a value ends; the end mark of a block is after the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _find_end(node.value[-1][1])
    return int(node.end_mark.index)
