"""Replies with tool calls as the cookbook's renderers write them; it prints them as JSON.

It runs in the cookbook's environment. The argument is JSON: for each reply a list of calls, which
are a name and arguments. No tokenizers of these models are needed: in their place stands one whose
tokens are bytes, and marks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tinker_cookbook.renderers import ToolCall, get_renderer

RENDERERS = (
    *("qwen3", "qwen3_instruct", "qwen3_5", "qwen3_8_medium_reasoning", "nemotron3"),
    *("kimi_k2", "kimi_k25", "deepseekv3", "deepseekv3_thinking", "deepseekv4_1"),
    *("gpt_oss_medium_reasoning", "glm5_3_high_reasoning"),
)


class Bytes:
    """A tokenizer of bytes. A text that is one mark, as renderers ask for some, is one token."""

    name_or_path, bos_token, eos_token = "bytes", "<s>", "</s>"

    def __init__(self) -> None:
        self._marks: list[str] = []

    def encode(self, text: str, **_: Any) -> list[int]:
        if text.startswith("<") and text.find(">") == len(text) - 1 and " " not in text:
            if text not in self._marks:
                self._marks.append(text)
            return [256 + self._marks.index(text)]
        return list(text.encode())

    def decode(self, tokens: list[int], **_: Any) -> str:
        return b"".join(
            self._marks[token - 256].encode() if token >= 256 else bytes([token])
            for token in tokens
        ).decode()

    def convert_tokens_to_ids(self, text: str) -> int:
        return self.encode(text)[0]


def render(name: str, calls: list[tuple[str, dict[str, Any]]]) -> tuple[str, str]:
    """A prompt, and the reply to it."""
    tokenizer = Bytes()
    renderer = get_renderer(name, tokenizer)
    made = [
        ToolCall(
            id=f"functions.{tool}:{i}",
            function=ToolCall.FunctionBody(
                name=tool, arguments=json.dumps(arguments, ensure_ascii=i % 2 == 0)
            ),
        )
        for i, (tool, arguments) in enumerate(calls)
    ]
    asked = {"role": "user", "content": "Go."}
    reply = {"role": "assistant", "content": "I look.", "tool_calls": made}
    prompt = tokenizer.decode(renderer.build_generation_prompt([asked]).to_ints())
    tokens = renderer.build_supervised_example([asked, reply])[0].to_ints()
    while tokens[-1] in renderer.get_stop_sequences():
        tokens = tokens[:-1]
    text = tokenizer.decode(tokens)
    pairs = enumerate(zip(prompt, text, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(prompt), len(text)))
    return text[:start], text[start:]


def main(replies: str) -> None:
    found = {name: [render(name, calls) for calls in json.loads(replies)] for name in RENDERERS}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
