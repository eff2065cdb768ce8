"""Read from a run directory how a run prompted its model, to prompt it the same way."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, Self

from mint.watch.directory.files import CONFIG, read_yaml
from mint.watch.directory.reader import RunReader

_SYSTEM = ("system_prompt", "system")
_TEMPLATE = ("template", "prompt_template")
_MOST_ROWS = 500
_MARK = re.compile(r"<\|[^|<>]+\|>|<(?:start|end)_of_turn>|\[/?INST\]|<｜[^｜]+｜>")


@dataclass(frozen=True)
class TrainedPrompt:
    """How a run prompts its model; None for what the run directory does not contain."""

    system: str | None = None
    template: str | None = None
    raw: bool = False
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    template_settings: Mapping[str, Any] = field(default_factory=dict)  # chat_template_kwargs
    shots: int = 0  # solved examples in every prompt
    examples: str = ""  # their text, where prompts are plain text

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the settings and the prompts of the first rollouts of a run directory."""
        config, job = read_yaml(folder / CONFIG), read_yaml(folder / "job.yaml")
        arguments = (job.get("task") or {}).get("arguments") or {}
        template, shots = _first(arguments, _TEMPLATE), int(arguments.get("shots") or 0)
        rows = islice(RunReader(folder).iter_rollouts(columns=["prompt"]), _MOST_ROWS)
        prompts = list(dict.fromkeys(row["prompt"] for row in rows if row["prompt"]))
        raw = not arguments["chat"] if "chat" in arguments else _is_plain(next(iter(prompts), ""))
        return cls(
            system=_first(arguments, _SYSTEM),
            template=template,
            raw=raw,
            stop=tuple(each for each in config.get("stop") or () if isinstance(each, str)),
            max_tokens=config.get("max_tokens"),
            template_settings=dict(arguments.get("chat_template_kwargs") or {}),
            shots=shots,
            examples=_common_start(prompts, template or "") if shots and raw else "",
        )

    def fill(self, text: str) -> str:
        """Put a prompt into the template, at its one placeholder.

        >>> TrainedPrompt(template="Question: {question}\\nAnswer:").fill("2 + 2?")
        'Question: 2 + 2?\\nAnswer:'
        """
        parts = list(Formatter().parse(self.template or ""))
        if sum(name is not None for _, name, _, _ in parts) != 1:
            return text
        return "".join(before + (text if name is not None else "") for before, name, _, _ in parts)

    def describe(self) -> str:
        """Describe what is reused from training; empty if nothing is."""
        parts = ["plain text, no chat template"] if self.raw else []
        parts += [f"system prompt {self.system!r}"] if self.system else []
        parts += [f"template {self.template!r}"] if self.fill("x") != "x" else []
        examples = f"{self.shots} example{'' if self.shots == 1 else 's'}"
        parts += [f"{'with' if self.examples else 'without'} its {examples}"] if self.shots else []
        parts += [f"stop {', '.join(map(repr, self.stop))}"] if self.stop else []
        parts += [f"at most {self.max_tokens} tokens"] if self.max_tokens else []
        return ", ".join(parts)


def _first(arguments: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    found = (arguments.get(name) for name in names)
    return next((value for value in found if isinstance(value, str) and value), None)


def _common_start(prompts: list[str], template: str) -> str:
    """Return the text that all prompts share before the last start of the template.

    >>> _common_start(["Q: a? A: b Q: c? A:", "Q: a? A: b Q: cd? A:"], "Q: {question} A:")
    'Q: a? A: b '
    """
    before = next((text for text, *_ in Formatter().parse(template)), "")
    if len(prompts) < 2 or not before:
        return ""
    common = os.path.commonprefix(prompts)  # noqa: RUF071 - texts, not paths
    return common[: max(0, common.rfind(before))]


def _is_plain(prompt: str) -> bool:
    """Return whether a prompt has no token of a chat template, except at its beginning.

    >>> _is_plain("<|begin_of_text|>2 + 2 ="), _is_plain("<|im_start|>user\\n2 + 2?<|im_end|>")
    (True, False)
    """
    if not prompt:
        return False
    first = _MARK.match(prompt)
    return _MARK.search(prompt, first.end() if first else 0) is None
