"""A prompt with the columns of a row in it: ``"Q: {question}\\nA:"``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from mint.config_error import ConfigError, closest


@dataclass(frozen=True)
class PromptTemplate:
    """Text with ``{column}`` where a column's value goes; braces themselves are ``{{`` and ``}}``.

    >>> PromptTemplate.read("Q: {question}\\\\nA:", ["question"]).filled({"question": "1 + 1?"})
    'Q: 1 + 1?\\\\nA:'
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def read(cls, text: str, columns: Collection[str]) -> PromptTemplate:
        """Read a template, or raise :class:`ConfigError` for a column that the data does not have.

        >>> PromptTemplate.read("Q: {qestion}", ["question"])
        Traceback (most recent call last):
        mint.rl.ConfigError: The template uses {qestion}, but the columns are question.\
 Did you mean 'question'? Write literal braces twice: {{ or }}.
        """
        try:
            found = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(
                f"The template {text!r} cannot be parsed: {error}. Write literal braces "
                "twice: {{ or }}."
            ) from None
        parts = []
        for before, name, form, conversion in found:
            if name is not None:
                written = name + (f"!{conversion}" if conversion else "")
                written += f":{form}" if form else ""
                if written not in columns:
                    raise ConfigError(
                        f"The template uses {{{written}}}, but the columns are "
                        f"{', '.join(columns)}.{closest(written, columns)} Write literal braces "
                        "twice: {{ or }}."
                    )
                name = written
            parts.append((before, name))
        if not any(name for _, name in parts):
            raise ConfigError(
                f"The template {text!r} contains no column, so every prompt would be the same. "
                f"Insert a column in braces: {{{next(iter(columns), 'prompt')}}}."
            )
        return cls(tuple(parts))

    @property
    def columns(self) -> list[str]:
        """The columns that it needs."""
        return [name for _, name in self.parts if name is not None]

    def filled(self, values: Mapping[str, Any]) -> str:
        """The text for one row."""
        return "".join(
            before + ("" if name is None else str(values[name])) for before, name in self.parts
        )
