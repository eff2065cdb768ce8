"""The chat templates of seventy models as their authors wrote them: ``make test-templates``.

They are read from the source package of llama-cpp-python, since a copy has no place here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mint.rl import parse_tool_calls
from mint.rl.algorithms.sequences import common_prefix
from mint.rl.messages.rendering import Renderer
from mint.rl.messages.tool_calls import ToolCall, opens_thought
from tests.tiny import build_tokenizer

FOLDER = Path(__file__).parents[3] / ".venvs" / "templates"
TEMPLATES = {path.stem: path for path in sorted(FOLDER.glob("*.jinja"))}
if not TEMPLATES:
    pytest.skip(
        "needs the templates of other projects: make test-templates", allow_module_level=True
    )

WITHOUT_CALLS = {  # templates that leave calls out, so that tools are described in a message
    "HuggingFaceTB-SmolLM3-3B",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
WITHOUT_RESULTS = {
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
UNREAD = {  # forms that are not read
    "CohereForAI-c4ai-command-r-plus-tool_use",  # "Action:" and a block of JSON
    "meetkai-functionary-medium-v3.2",  # a name, a line break and JSON, without any mark
}
FAILING = {  # transformers cannot render calls with these
    "Kimi-K2-Instruct",  # changes a list, which the sandbox of transformers forbids
    "Kimi-K2-Thinking",
    "fireworks-ai-llama-3-firefunction-v2",  # has a variable of its own for tools
    "llama-cpp-deepseek-r1",  # encodes a generator as JSON
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks it up.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "description": "-"} for key, kind in given},
                "required": [],
            },
        },
    }
    for name, given in [("weather", [("city", "string"), ("days", "integer")]), ("now", [])]
]
ASKED = {"role": "user", "content": "How is the weather?"}
ARGUMENTS = [{"city": 'Rome "the" <b>', "days": 2}, {"city": "Oslo", "days": 3}]
SEVERAL = [(name, 2) for name in TEMPLATES if not name.startswith("meta-llama")]
CASES = [
    (name, calls)
    for name, calls in [*((name, 1) for name in TEMPLATES), *SEVERAL]
    if name not in UNREAD and name not in FAILING
]
MARK = re.compile(r"<[^<>\s]{2,40}>|\[/?[A-Z_]{3,}\]|\[e~\[|\]~b\]")


class RealTemplate:
    """A tiny tokenizer with a real template, whose marks are tokens as in the real one."""

    def __init__(self, name: str) -> None:
        self.tokenizer: Any = build_tokenizer()
        self.tokenizer.bos_token, self.tokenizer.eos_token = "<s>", "</s>"
        self.tokenizer.chat_template = TEMPLATES[name].read_text()

    def render(self, *messages: dict[str, Any], prompts: bool = True) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tools=TOOLS, tokenize=False, add_generation_prompt=prompts
        )
        known = self.tokenizer.get_vocab()
        new = [mark for mark in sorted(set(MARK.findall(text))) if mark not in known]
        self.tokenizer.add_tokens(new, special_tokens=True)
        return text

    def called(self, calls: int) -> dict[str, Any]:
        """A reply with calls, their arguments as an object or, if need be, as a string."""
        for encode in (dict, json.dumps):
            given = [
                {
                    "id": f"abcde123{i}",
                    "type": "function",
                    "function": {"name": "weather", "arguments": encode(arguments)},
                }
                for i, arguments in enumerate(ARGUMENTS[:calls])
            ]
            reply = {"role": "assistant", "content": "", "tool_calls": given}
            try:
                self.render(ASKED, reply)
            except TypeError:
                continue
            return reply
        raise AssertionError("calls were rendered neither as objects nor as strings")

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def follow(template: RealTemplate, said: str, message: dict[str, Any], *calls: ToolCall) -> str:
    """What the renderer puts after a reply that was cut off where its text ends."""
    renderer = Renderer(template.tokenizer, TOOLS)
    tokens = renderer.follow([message], template.encode(said), False, calls)
    return str(template.tokenizer.decode(tokens))


@pytest.mark.parametrize(("name", "calls"), CASES)
def test_calls_are_read_as_the_template_writes_them(name: str, calls: int) -> None:
    template = RealTemplate(name)
    prompt = template.render(ASKED)
    whole = template.render(ASKED, template.called(calls), prompts=False)
    begun = whole[: common_prefix(prompt, whole)]
    begun = re.sub(r"<[^<>\s]*\Z", "", begun)  # a mark that only begins alike
    said = whole[len(begun) :]
    assert ("weather" in said) is (name not in WITHOUT_CALLS)
    if name in WITHOUT_CALLS:
        return
    said = said.rstrip().removesuffix("</s>").removesuffix("<|im_end|>").removesuffix("<|eot_id|>")
    found = parse_tool_calls(said, thinking=opens_thought(begun))
    assert [call.error for call in found] == [None] * len(found)
    written = ARGUMENTS[: 1 if said.count("weather") == 1 else calls]
    assert [call.name for call in found] == ["weather"] * len(written)
    # In forms without types a number is a string until the tool's types are known.
    read = [{**call.arguments, "days": int(call.arguments["days"])} for call in found]
    assert read == written


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n not in FAILING])
def test_an_answer_is_followed_by_what_the_template_writes(name: str) -> None:
    template = RealTemplate(name)
    thanks = {"role": "user", "content": "Thanks."}
    whole = template.render(ASKED, {"role": "assistant", "content": "Sunny."}, thanks)
    assert follow(template, "Sunny.", thanks) == whole.rpartition("Sunny.")[2]


@pytest.mark.parametrize(
    "name", [n for n in TEMPLATES if n not in WITHOUT_CALLS | WITHOUT_RESULTS | FAILING]
)
def test_a_result_is_followed_by_what_the_template_writes(name: str) -> None:
    template = RealTemplate(name)
    called = template.called(1)
    call = ToolCall("weather", ARGUMENTS[0], id="abcde1230")
    result = {"role": "tool", "content": "It is hot.", "name": "weather", "tool_call_id": call.id}
    whole = template.render(ASKED, called, result)
    given = follow(template, "So:", result, call)
    assert whole.endswith(given)
    assert "It is hot." in given
    assert "Rome" not in given
    # All of the result is in it: what is between the call and it only closes the turn.
    rest = whole.removesuffix(given).rpartition("Rome")[2].lower()
    assert "result" not in rest
    assert "response" not in rest
