"""A model's tokenizer and chat template, read from its files without torch or transformers."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mint.service.errors import UserError
from mint.service.text.template import ChatTemplate

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
BROKEN = "�"
MAX_CHARACTERS = 1_000_000
"""The most characters of one request: encoding ten times as many took twelve seconds."""


def check_length(characters: int) -> None:
    """Raise UserError for more text than one request may have."""
    if characters > MAX_CHARACTERS:
        raise UserError(
            f"The request has {characters} characters of text, and this service encodes at most "
            f"{MAX_CHARACTERS} at once. Shorten it, or send tokens."
        )


class ModelTokenizer:
    """The tokenizer and chat template of a model folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise UserError(
                f"The model's folder {folder.name} has no tokenizer.json, which the OpenAI routes "
                "need. Load the tokenizer with transformers once and save it with "
                "save_pretrained(), or sample with tokens through the SDK."
            )
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = _json(folder / "tokenizer_config.json")
        named = _json(folder / "special_tokens_map.json") | config
        self._special_tokens = {
            key: text
            for key, value in named.items()
            if key.endswith("_token") and (text := _content(value)) is not None
        }
        self._templates = _templates(folder, config)

    def encode(self, text: str, special: bool) -> list[int]:
        """Return token ids; ``special`` adds what the model expects first, such as BOS."""
        check_length(len(text))
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return text without special tokens."""
        return self._tokenizer.decode([int(token) for token in tokens])

    def decode_token(self, token: int) -> str:
        """Return one token as text; a special token as its name."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def decode_token_bytes(self, token: int) -> list[int]:
        """Return the bytes of one token, also if it is only part of a character."""
        text = self.decode_token(token)
        if BROKEN not in text:
            return list(text.encode())
        name = self._tokenizer.id_to_token(token) or ""
        if match := _BYTE_TOKEN.fullmatch(name):
            return [int(match[1], 16)]
        alphabet = _byte_of_symbol()
        return [alphabet[symbol] for symbol in name if symbol in alphabet]

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
    ) -> str:
        """Return the prompt of a conversation, by the model's own template."""
        template = (tools and self._templates.get("tool_use")) or self._templates.get("default")
        if template is None:
            raise UserError(
                "This model has no chat template. Use /v1/completions with a plain prompt."
            )
        if not template.knows_developer:
            messages = [
                {**m, "role": "system"} if m["role"] == "developer" else m for m in messages
            ]
        defaults = {"add_generation_prompt": True, **self._special_tokens}
        return template.render(
            **{**defaults, **variables, "messages": messages, "tools": tools, "documents": None}
        )


@cache
def load_tokenizer(folder: Path) -> ModelTokenizer:
    """Return the tokenizer of a model folder, which stays in memory."""
    return ModelTokenizer(folder)


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def _content(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, ChatTemplate]:
    """Return the templates by name; the file in the folder overrides the configuration."""
    entry = config.get("chat_template") or []
    if isinstance(entry, str):
        entry = [{"name": "default", "template": entry}]
    sources = {named["name"]: named["template"] for named in entry}
    if (file := folder / "chat_template.jinja").is_file():
        sources["default"] = file.read_text()
    return {name: ChatTemplate(source) for name, source in sources.items()}


@cache
def _byte_of_symbol() -> dict[str, int]:
    """Return the alphabet of byte-level tokenizers: printable bytes are themselves, others start
    at 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte): byte for byte in printable}
    return symbols | {chr(256 + i): byte for i, byte in enumerate(others)}
