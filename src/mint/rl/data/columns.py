"""Find the columns of a data file, and turn its rows into problems, each checked."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

from mint.config_error import ConfigError, closest
from mint.rewards import Sample
from mint.rewards.answers.gold import read_gold
from mint.rl.data.file_formats import DataError, Row, setting, type_name

PROMPT, ANSWER = "prompt", "answer"
ROLES = ("system", "user", "assistant", "tool", "developer")
_USUAL = {
    "prompt_column": ("prompt", "question", "problem", "instruction", "query", "input", "text"),
    "answer_column": ("answer", "ground_truth", "solution", "target", "label", "output"),
    "messages_column": ("messages", "conversations", "conversation", "chat"),
    "system_column": ("system", "system_prompt"),
}
"""What columns are often called, to suggest the right one."""
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
"""In a template: a literal brace, or a column."""

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """One row as the loop and the reward see it."""

    prompt: str
    messages: tuple[Message, ...]
    metadata: Mapping[str, Any]
    place: str

    def as_sample(self, response: str) -> Sample:
        """Return a response to this problem, ready for a reward."""
        return Sample(response, self.prompt, self.metadata)


@dataclass(frozen=True)
class PromptTemplate:
    """Text with ``{column}`` where a column's value goes; braces themselves are ``{{`` and ``}}``.

    >>> PromptTemplate.read("Q: {question}\\nA:", ["question"]).filled({"question": "1 + 1?"})
    'Q: 1 + 1?\\nA:'
    """

    text: str
    columns: tuple[str, ...]

    @classmethod
    def read(cls, text: str, columns: Collection[str]) -> Self:
        """Read a template, or raise :class:`ConfigError` for a column that the data does not have.

        >>> PromptTemplate.read("Q: {qestion}", ["question"])
        Traceback (most recent call last):
        mint.rl.ConfigError: The template uses {qestion}, but the columns are question.\
 Did you mean 'question'? Write literal braces twice: {{ or }}.
        """
        if re.search("[{}]", _BRACES.sub("", text)):
            raise ConfigError(
                f"The template {text!r} cannot be parsed: it has a single brace. Write literal "
                "braces twice: {{ or }}."
            )
        used = tuple(found[1] for found in _BRACES.finditer(text) if found[1] is not None)
        for name in used:
            if name not in columns:
                raise ConfigError(
                    f"The template uses {{{name}}}, but the columns are {', '.join(columns)}."
                    f"{closest(name, columns)} Write literal braces twice: {{{{ or }}}}."
                )
        if not used:
            raise ConfigError(
                f"The template {text!r} contains no column, so every prompt would be the same. "
                f"Insert a column in braces: {{{next(iter(columns), 'prompt')}}}."
            )
        return cls(text, used)

    def filled(self, values: Mapping[str, Any]) -> str:
        def value(found: re.Match[str]) -> str:
            return found[0][0] if found[1] is None else str(values[found[1]])

        return _BRACES.sub(value, self.text)


class Columns:
    """The columns of a file and what each holds.

    ``given`` are the arguments of the task: a template, and the names of columns. One that the
    file does not have raises :class:`DataError`.
    """

    def __init__(self, rows: Sequence[Row], file: str, given: Mapping[str, str | None]) -> None:
        self.names = names = _names(rows)
        prompts = ("prompt_column", "messages_column", "template")
        several = [name for name in prompts if given[name] is not None]
        if len(several) > 1:
            raise DataError(
                f"{' and '.join(several)} are set, but only one can define the prompt. Leave out "
                f"{several[-1]}."
            )
        asks = {name: given[name] for name in _USUAL}
        if not several:
            asks["prompt_column"] = PROMPT
        for argument, name in asks.items():
            if name is not None and name not in names:
                raise _no_column(file, name, argument, names)
        self.prompt, self.messages = asks["prompt_column"], asks["messages_column"]
        self.system = asks["system_column"]
        self.answer = asks["answer_column"] or (ANSWER if ANSWER in names else None)
        template = given["template"]
        self.template = None if template is None else PromptTemplate.read(template, names)
        if self.template is not None and self.answer in self.template.columns:
            raise DataError(
                f"The template shows {{{self.answer}}}, the gold answer, to the model. Remove it, "
                f"or set {setting('answer_column')}. Write literal braces twice: "
                f"{{{{{self.answer}}}}}."
            )

    def no_answer(self, file: str) -> DataError:
        found = _usual("answer_column", self.names)
        hint = setting("answer_column", found or "COLUMN")
        return DataError(
            f"{file} has no column {ANSWER!r}; its columns are {', '.join(self.names)}. Name the "
            f"column with the gold answers: {hint}, or a reward that needs none: "
            "training.reward_function=my_rewards.py:my_reward (in a script: reward=my_reward)."
        )

    def check_same(self, rows: Sequence[Row], file: str) -> None:
        """Raise :class:`DataError` when another file lacks one of the columns."""
        names = _names(rows)
        in_template = self.template.columns if self.template else ()
        for name in (self.prompt, self.answer, self.messages, self.system, *in_template):
            if name is not None and name not in names:
                raise DataError(
                    f"{file} has no column {name!r}; its columns are {', '.join(names)}. It needs "
                    "the same columns as the training data."
                )

    def problem(self, row: Row, check_gold: bool) -> Problem:
        """Turn a row into a problem. With ``check_gold``, the answer must suit ``check_answer``."""
        metadata = dict(row.fields)
        if self.answer is not None:
            metadata[ANSWER] = self._gold(row, self.answer, check_gold)
        messages = self._messages(row)
        if self.system is not None and (value := row.fields.get(self.system)) is not None:
            system = _string(row, self.system, value)
            if messages[0]["role"] == "system":
                what = "is set, but the messages already contain a system prompt"
                raise _wrong(row, self.system, what)
            if system.strip():
                messages = ({"role": "system", "content": system}, *messages)
        return Problem(messages[-1]["content"], messages, metadata, row.place)

    def _messages(self, row: Row) -> tuple[Message, ...]:
        if self.messages is not None:
            return _checked_messages(row, self.messages)
        if self.template is None:
            assert self.prompt is not None
            text = _prompt(row, self.prompt)
        else:
            for name in self.template.columns:
                if _value(row, name) is None:
                    raise _wrong(row, name, "is null, and the template needs it")
            text = _string(row, self.template.columns[0], self.template.filled(row.fields))
        return ({"role": "user", "content": text},)

    def _gold(self, row: Row, column: str, check_gold: bool) -> Any:
        value = _value(row, column)
        if value is None or value == "":
            raise _wrong(row, column, "is empty, and it must be the gold answer")
        if not check_gold:
            return value
        if not isinstance(value, str | int | float):
            raise _wrong(row, column, f"is {type_name(value)}; it must be a string or a number")
        if isinstance(value, str):
            _string(row, column, value)
        not_finite = isinstance(value, float) and not math.isfinite(value)
        if not_finite or read_gold(value).kind == "never right":
            raise _wrong(row, column, f"is {value!r}, which no answer can be equal to")
        return value


def _checked_messages(row: Row, column: str) -> tuple[Message, ...]:
    value = _value(row, column)
    if isinstance(value, str):  # a cell of a CSV file
        try:
            value = json.loads(value)
        except ValueError as error:
            raise _wrong(row, column, f"is a string that is not JSON ({error})") from None
    if not isinstance(value, list) or not value:
        what = "an empty list" if value == [] else type_name(value)
        wanted = 'it must be messages: [{"role": "user", "content": "..."}]'
        raise _wrong(row, column, f"is {what}; {wanted}")
    messages = tuple(
        _checked_message(row, f"{column}[{i}]", each) for i, each in enumerate(value, start=1)
    )
    if messages[-1]["role"] == "assistant":
        what = "ends with an assistant message, which the model should write itself. Remove it"
        raise _wrong(row, column, f"{what}; if it is the gold answer, move it to its own column")
    return messages


def _checked_message(row: Row, name: str, message: Any) -> Message:
    if not isinstance(message, Mapping):
        what = type_name(message)
        raise _wrong(row, name, f'is {what}; it must be {{"role": ..., "content": ...}}')
    if "from" in message and "value" in message:
        raise _wrong(row, name, "has 'from' and 'value'; rename them to 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise _wrong(row, f"{name}.role", f"is {role!r}; it must be one of {', '.join(ROLES)}")
    if content is None and message.get("tool_calls"):
        content = ""
    content = _string(row, f"{name}.content", content)
    return {**{k: v for k, v in message.items() if v is not None}, "content": content}


def _prompt(row: Row, column: str) -> str:
    value = _value(row, column)
    hint = f". If these are messages, set {setting('messages_column', column)}"
    text = _string(row, column, value, hint if isinstance(value, list) else "")
    if not text.strip():
        raise _wrong(row, column, "is empty, and it must be the prompt")
    return text


def _value(row: Row, column: str) -> Any:
    if column not in row.fields:
        raise DataError(
            f"{row.place}: there is no field {column!r}. Its fields are "
            f"{', '.join(row.fields) or 'none'}.{closest(column, row.fields)}"
        )
    return row.fields[column]


def _string(row: Row, column: str, value: Any, hint: str = "") -> str:
    """Return a value if it is a string that can be encoded."""
    if not isinstance(value, str):
        raise _wrong(row, column, f"is {type_name(value)}; it must be a string{hint}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        what = f"contains a lone surrogate (half of a character) at position {error.start + 1}"
        raise _wrong(row, column, what) from None
    return value


def _wrong(row: Row, column: str, what: str) -> DataError:
    return DataError(f"{row.place}: the field {column!r} {what}.")


def _no_column(file: str, name: str, argument: str, names: Sequence[str]) -> DataError:
    found = next(iter(get_close_matches(name, names, n=1)), None) or _usual(argument, names)
    if found is None and argument == "prompt_column" and _usual("messages_column", names):
        argument = "messages_column"
        found = _usual(argument, names)
    columns = f"{file} has no column {name!r}; its columns are {', '.join(names)}."
    return DataError(f"{columns} Set {setting(argument, found or 'COLUMN')}.")


def _usual(argument: str, names: Sequence[str]) -> str | None:
    return next((name for name in _USUAL[argument] if name in names), None)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.fields))
