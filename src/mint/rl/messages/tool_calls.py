"""Tool calls in the text of a reply: the forms that open models are trained to write.

Each form begins with its own mark, and the first mark in a reply determines how the reply is
parsed: whatever looks like another form, or like a thinking block, inside the arguments is text. A
reply without a mark is a call only if it contains nothing else.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from mint.rl.messages.argument_syntax import (
    NOT_A_CALL,
    json_values,
    list_or_object,
    python_calls,
    unquoted_object,
)

THOUGHTS = (  # what opens and closes a thought
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)
_REASONING_CHANNELS = ("<|channel|>analysis<|message|>", "to=self<|message|>")  # gpt-oss, Muse
_THOUGHT = re.compile(
    "|".join(rf"{re.escape(o)}.*?(?:{re.escape(c)}|\Z)" for o, c in THOUGHTS)
    + "|"
    + "|".join(
        re.escape(channel) + r".*?(?:<\|end\|>|<\|eom\|>|<\|start\|>|\Z)"
        for channel in _REASONING_CHANNELS
    ),
    re.DOTALL,
)
_CLOSED = re.compile("|".join(re.escape(close) for _, close in THOUGHTS))
_MINIMAX = "]<]minimax[>["  # before each tag of MiniMax-M3
_WRAPPERS = (  # what opens and closes a call or a list of calls
    ("<tool_call>", "</tool_call>"),  # Qwen, Hermes, SmolLM, GLM, Granite 4, Nemotron 3
    ("<|tool_call|>", "<|/tool_call|>"),  # Phi-4-mini; Granite 3, which does not close it
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    ("<|tool_call>", "<tool_call|>"),  # Gemma 4
    ("<start_function_call>", "<end_function_call>"),  # FunctionGemma
    ("```tool_code", "```"),  # Gemma 3, as its documentation prompts it
    ("<tool_calls>", "</tool_calls>"),  # Jamba, MiniMax-M1
    ("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron Nano 2
    ("<function_calls>", "</function_calls>"),  # OLMo 3
    ("<function_call>", "</function_call>"),  # Granite 20B
    ("<seed:tool_call>", "</seed:tool_call>"),  # Seed-OSS
    ("<minimax:tool_call>", "</minimax:tool_call>"),  # MiniMax-M2
    ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),  # DeepSeek V3.2
    ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),  # DeepSeek V4
    ("<｜DSML｜ calls>", "</｜DSML｜ calls>"),  # DeepSeek V4.1
    ("<atem:function_calls>", "</atem:function_calls>"),  # Muse
    (f"{_MINIMAX}<tool_call>", f"{_MINIMAX}</tool_call>"),  # MiniMax-M3
    ("<tool_call:opensource>", "</tool_call:opensource>"),  # Hunyuan 3
    ("<|function_call|>", "<|message_sep|>"),  # GigaChat 3.1
    ("function call<|role_sep|>", "<|message_sep|>"),  # GigaChat 3
    ("<|START_ACTION|>", "<|END_ACTION|>"),  # Command A, Command R7B
    ("<|action_start|><|plugin|>", "<|action_end|>"),  # InternLM
    ("<|python_start|>", "<|python_end|>"),  # Llama 4
)
_NAMED = {  # by mark: a pattern for the start of a call with its name and maybe an id, and its end
    "[TOOL_CALLS]": (  # Mistral Small 3.2, Magistral, Devstral
        r"\[TOOL_CALLS\]\s*(?P<name>[\w.-]+)(?:\[CALL_ID\](?P<id>\w+))?\[ARGS\]",
        r"(?=\[TOOL_CALLS\])",
    ),
    "<｜tool▁call▁begin｜>": (  # DeepSeek V3, R1 (with a code block) and V3.1
        r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]+)"
        r"(?:<｜tool▁sep｜>|\s*```json)",
        r"(?:```\s*)?<｜tool▁call▁end｜>",
    ),
    "<|tool_call_begin|>": (  # Kimi K2
        r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?)\s*"
        r"<\|tool_call_argument_begin\|>",
        r"<\|tool_call_end\|>",
    ),
    "<|tool_call:begin|>": (  # Solar
        r"<\|tool_call:begin\|>(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[\w.-]+)"
        r"<\|tool_call:args\|>",
        r"<\|tool_call:end\|>",
    ),
    "to=functions.": (  # gpt-oss
        r"to=functions\.(?P<name>[\w.-]+)(?:\s|\w|<\|channel\|>|<\|constrain\|>)*<\|message\|>",
        r"<\|call\|>",
    ),
}
_MOST_CLOSINGS = 16  # the most that are tried as the end of one call
_JSON_BEGINS = re.compile(r"\{|\[\s*\{")
_PARAMETER = re.compile(r"<parameter=(?P<key>[^>\s]+)>\n?(?P<text>.*?)\n?</parameter>", re.DOTALL)
_DIALECT = "(?:｜DSML｜ ?|atem:)?"  # a prefix in tags of DeepSeek and Muse
_TAG_BEGINS = f"(?:{re.escape(_MINIMAX)})?<"
_INVOKED = re.compile(f"{_TAG_BEGINS}{_DIALECT}invoke name=")
_INVOKE = re.compile(
    rf'{_TAG_BEGINS}{_DIALECT}invoke name="([^"]+)">(.*?){_TAG_BEGINS}/{_DIALECT}invoke>',
    re.DOTALL,
)
_NAMED_PARAMETER = re.compile(
    rf'<{_DIALECT}parameter name="(?P<key>[^"]+)"(?: string="(?P<kind>true|false)")?>'
    rf"(?P<text>.*?)</{_DIALECT}parameter>",
    re.DOTALL,
)
_TAG = re.compile(rf"{_TAG_BEGINS}(?P<key>[\w.-]+)>(?P<text>.*?){_TAG_BEGINS}/(?P=key)>", re.DOTALL)
_TAGGED_CALLS = {  # what opens a call of tagged arguments and closes it, and the arguments
    "<function name=": (  # MiniCPM5
        r'<function name="(?P<name>[^"]+)">',
        "</function>",
        r'<param name="(?P<key>[^"]+)">(?:<!\[CDATA\[)?(?P<text>.*?)(?:\]\]>)?</param>',
    ),
    '<|open|>call tool="': (  # Kimi K3
        r'<\|open\|>call tool="(?P<name>[^"]+)"(?: index="\d+")?<\|sep\|>',
        r"<\|close\|>call<\|sep\|>",
        r'<\|open\|>argument key="(?P<key>[^"]+)" type="(?P<kind>\w+)"<\|sep\|>'
        r"(?P<text>.*?)<\|close\|>argument<\|sep\|>",
    ),
}
_KEYED = re.compile(r"([A-Za-z_][\w.-]*)(?:<tool_sep:\w+>)?\s*((?:<arg_key.*)?)", re.DOTALL)
_ARGUMENT = re.compile(
    r"<arg_key(?::\w+)?>\s*(?P<key>.*?)\s*</arg_key(?::\w+)?>\s*"
    r"<arg_value(?::\w+)?>\n?(?P<text>.*?)\n?</arg_value(?::\w+)?>",
    re.DOTALL,
)
_STRING = ("true", "string")  # how tags say that a value is one
_BRACED = re.compile(r"call:([\w.-]+)(\{.*\})", re.DOTALL)
_CODE_END = re.compile(r"\s*```\s*\Z")
_PYTHON_TAG = "<|python_tag|>"
_BUILT_IN = re.compile(r"([\w.]+)\.call(\(.*\))", re.DOTALL)
_BLOCK = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)
_BEGUN = re.compile(r'\[?\s*\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"')


@dataclass(frozen=True)
class ToolCall:
    """A tool call. One that could not be parsed says why, and may have no name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    id: str | None = None  # as the model wrote it
    texts: dict[str, str] = field(default_factory=dict, compare=False)
    """Arguments of a form without types that were read as JSON, as they were written."""


_CUT_OFF = ToolCall("", error="the call is cut off")
_NAMELESS = ToolCall("", error="a call needs a name")


def parse_tool_calls(text: str, thinking: bool = False) -> list[ToolCall]:
    """Return the tool calls of a reply, in order, in any form that ``docs/agents.md`` lists.

    Thinking blocks have no calls. ``thinking``: the prompt opened one (:func:`opens_thought`).

    >>> calls = parse_tool_calls('<tool_call>[{"name": "add", "arguments": {"a": 1}}]</tool_call>')
    >>> calls[0].name, calls[0].arguments
    ('add', {'a': 1})
    >>> parse_tool_calls("The answer is 4.")
    []
    >>> parse_tool_calls('I may call <tool_call>{"name": "add"}</tool_call>', thinking=True)
    []
    """
    if thinking:
        closed = _CLOSED.search(text)
        if closed is None:
            return []
        text = text[closed.end() :]
    said = _without_thoughts(text)
    if calls := _only_calls(said):
        return calls
    for mark in sorted((each for each in _FORMS if each in said), key=said.find):
        if calls := _FORMS[mark](said):
            return calls
    return _bare(said.strip())


def _without_thoughts(text: str) -> str:
    """Return a reply without its thoughts, also without one that only ends in it.

    Marks inside a call are text: those of a call that is closed, or whose JSON is complete.
    """
    said, at = "", 0
    while found := _MARK.search(text, at):
        if not said.strip() and _only_calls(text[at:]):
            break
        said += text[at : found.start()]
        if _CLOSED.match(text, found.start()):
            said, at = "", found.end()
        elif thought := _THOUGHT.match(text, found.start()):
            at = thought.end()
        else:
            at = _call_end(text, found)
            said += text[found.start() : at]
    return said + text[at:]


def _call_end(text: str, mark: re.Match[str]) -> int:
    """Return where the call that begins with a mark ends; after the mark if that is unknown."""
    form = _CLOSED_FORMS.get(mark[0])
    begun = form.opening.match(text, mark.start()) if form else None
    if form and begun and form.closing.search(text, begun.end()):
        return form.read_one(text, begun)[1]
    if json_begins := _JSON_BEGINS.search(text, mark.end() - 1):  # the mark may end with a bracket
        with suppress(*NOT_A_CALL):
            return json.JSONDecoder().raw_decode(text, json_begins.start())[1]
    return mark.end()


def opens_thought(prompt: str) -> bool:
    """Return whether a prompt ends inside a thinking block, as for some reasoning models.

    >>> opens_thought("<|im_start|>assistant\\n<think>\\n")
    True
    >>> opens_thought("<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n")
    False
    """
    return prompt.rstrip().endswith(tuple(opening for opening, _ in THOUGHTS))


@dataclass(frozen=True)
class _Form:
    """A form of calls: what opens one, what closes it, and how to read what is between."""

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    read: Callable[[Mapping[str, Any], str], list[ToolCall]]
    needs_closing: bool = False  # else the end of a reply closes it too

    def read_all(self, said: str) -> list[ToolCall]:
        found, at = list[ToolCall](), 0
        while begun := self.opening.search(said, at):
            calls, at = self.read_one(said, begun)
            found += calls
        return found

    def read_one(self, said: str, begun: re.Match[str]) -> tuple[list[ToolCall], int]:
        """Return what an opening begins, and where it ends: at the first closing that leaves a
        readable call, since the same mark may be text in its arguments, or else at the first."""
        closings = islice(self.closing.finditer(said, begun.end()), _MOST_CLOSINGS)
        ends = [closing.span() for closing in closings]
        if len(ends) < _MOST_CLOSINGS and not self.needs_closing:
            ends.append((len(said), len(said)))
        first: tuple[list[ToolCall], int] | None = None
        for end, after in ends:
            calls = self.read(begun.groupdict(), said[begun.end() : end])
            if not any(call.error for call in calls):
                return calls, after
            first = first or (calls, after)
        return first or ([], len(said))


def _wrapped(opening: str, closing: str) -> _Form:
    patterns = re.compile(re.escape(opening)), re.compile(re.escape(closing))
    return _Form(*patterns, lambda _, piece: _read(piece.strip()))


def _named_call(head: Mapping[str, Any], arguments: str) -> list[ToolCall]:
    return [_call({**head, "arguments": _CODE_END.sub("", arguments)})]


def _tagged_form(opening: str, closing: str, argument: str) -> _Form:
    pattern = re.compile(argument, re.DOTALL)
    return _Form(
        re.compile(opening),
        re.compile(closing),
        lambda head, given: [_tagged(head["name"], given, pattern)],
    )


def _calls_by_name(_: Mapping[str, Any], piece: str) -> list[ToolCall]:
    """Read a JSON list of objects with one key each: the name, whose value is the arguments."""
    try:
        found = [pair for value in json_values(piece) for pair in value.items()]
    except (*NOT_A_CALL, AttributeError) as error:
        return [ToolCall("", error=f"the call is not JSON: {error}")]
    return [_call({"name": name, "arguments": arguments}) for name, arguments in found]


def _function(head: Mapping[str, Any], given: str) -> list[ToolCall]:
    """Read what follows ``<function=name>``: JSON, or parameters."""
    is_json = given.lstrip().startswith("{")
    call = {**head, "arguments": given}
    return [_call(call) if is_json else _tagged(head["name"], given, _PARAMETER)]


def _functions(said: str) -> list[ToolCall]:
    begun = said.lstrip().startswith("<function=")
    return _FUNCTION.read_all(said) or ([_CUT_OFF] if begun else [])


def _listed(said: str, mark: str) -> list[ToolCall]:
    """Read JSON after a mark that nothing closes."""
    found = re.search(rf"{re.escape(mark)}\s*([\[{{].*)", said, re.DOTALL)
    return _from_json(found[1], whole=False) if found else []


_FUNCTION = _Form(  # Llama 3.1 with tools of one's own; Qwen3-Coder without its wrapper
    re.compile(r"<function=(?P<name>[^>\s]+)>"), re.compile("</function>"), _function, True
)
_CLOSED_FORMS = {
    **{opening: _wrapped(opening, closing) for opening, closing in _WRAPPERS},
    **{m: _Form(re.compile(a), re.compile(z), _named_call) for m, (a, z) in _NAMED.items()},
    **{m: _tagged_form(*patterns) for m, patterns in _TAGGED_CALLS.items()},
    "<function=": _FUNCTION,
    "<|tools_prefix|>": _Form(  # Apertus
        re.compile(r"<\|tools_prefix\|>"), re.compile(r"<\|tools_suffix\|>"), _calls_by_name
    ),
}


def _mistral(said: str) -> list[ToolCall]:
    return _listed(said, "[TOOL_CALLS]") or _CLOSED_FORMS["[TOOL_CALLS]"].read_all(said)


_FORMS: dict[str, Callable[[str], list[ToolCall]]] = {
    **{mark: form.read_all for mark, form in _CLOSED_FORMS.items()},
    "<function=": _functions,
    "[TOOL_CALLS]": _mistral,
    "functools[": lambda said: _listed(said, "functools"),  # Phi-4-mini in other prompts
}
_MARKS = (*_REASONING_CHANNELS, *chain(*THOUGHTS), *_FORMS)
_MARK = re.compile("|".join(map(re.escape, _MARKS)))


def _read(piece: str) -> list[ToolCall]:
    """Return the calls inside a wrapper, which models fill in different ways."""
    if piece.startswith("<function="):
        return _functions(piece)
    if _INVOKED.match(piece):
        rest = [_CUT_OFF] if "<" in _INVOKE.sub("", piece) else []
        return [
            _tagged(name, given, _NAMED_PARAMETER if "parameter name=" in given else _TAG)
            for name, given in _INVOKE.findall(piece)
        ] + rest
    if keyed := _KEYED.fullmatch(piece):
        return [_tagged(keyed[1], keyed[2], _ARGUMENT)]
    if piece.startswith("call:"):
        return _braced(piece)
    if piece.startswith(("{", '["', "[{", "[\n")) or not re.match(r"\[?[A-Za-z_]", piece):
        return _from_json(piece)
    return _from_python(piece)


def _from_json(text: str, whole: bool = True) -> list[ToolCall]:
    try:
        return [_call(value) for value in json_values(text, whole)] or [_NAMELESS]
    except NOT_A_CALL as error:
        return [ToolCall("", error=f"the call is not JSON: {error}")]


def _from_python(text: str) -> list[ToolCall]:
    try:
        return [ToolCall(*call) for call in python_calls(text)] or [_NAMELESS]
    except NOT_A_CALL as error:
        return [ToolCall("", error=f"the call cannot be parsed: {error}")]


def _braced(piece: str) -> list[ToolCall]:
    found = _BRACED.fullmatch(piece)
    if not found:
        return [_CUT_OFF]
    try:
        return [_call({"name": found[1], "arguments": unquoted_object(found[2])})]
    except NOT_A_CALL as error:
        return [ToolCall(found[1], error=f"the arguments cannot be parsed: {error}")]


def _only_calls(text: str) -> list[ToolCall]:
    """Return the calls of a reply that is nothing else, if all of them can be read."""
    calls = _bare(text.strip())
    return [] if any(call.error for call in calls) else calls


def _bare(text: str) -> list[ToolCall]:
    """Return the calls of a reply that consists of calls only; JSON that is an answer is none."""
    if marked := text.startswith(_PYTHON_TAG):
        text = text.removeprefix(_PYTHON_TAG).strip()
        if built_in := _BUILT_IN.fullmatch(text):
            return _from_python(built_in[1] + built_in[2])
    elif block := _BLOCK.fullmatch(text):
        text = block[1].strip()
    if not text.startswith(("{", "[")):
        return []
    try:
        found = json_values(text)
    except NOT_A_CALL as error:
        if marked or _BEGUN.match(text):
            return [ToolCall("", error=f"the call is not JSON: {error}")]
        # [f(a=1), g()]: Llama 3.2, and models that were shown this form. Without a name for each
        # argument it is rather an answer.
        calls = _from_python(text) if text.startswith("[") else []
        return [] if any(call.error for call in calls) else calls
    wanted = [isinstance(v, dict) and {"arguments", "parameters"} & v.keys() for v in found]
    return [_call(value) for value in found] if marked or (found and all(wanted)) else []


def _tagged(name: str, given: str, argument: re.Pattern[str]) -> ToolCall:
    """Read arguments between tags, which may say whether a value is a string.

    If they do not, only lists and objects are JSON. A tool's types do the rest.
    """
    if "<" in argument.sub("", given):
        return _CUT_OFF
    found = [match.groupdict() for match in argument.finditer(given)]
    texts: dict[str, str] = {each["key"]: each["text"] for each in found}
    kinds = {each["key"]: each.get("kind") for each in found}
    values = {
        key: text if kinds[key] in _STRING else list_or_object(text, scalars=bool(kinds[key]))
        for key, text in texts.items()
    }
    read = {key: text for key, text in texts.items() if values[key] is not text}
    return ToolCall(name, values, texts=read)


def _call(value: Any) -> ToolCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}  # as chat services write a call
    if not isinstance(value, dict):
        return _NAMELESS
    name, own = value.get("name", value.get("tool_name")), value.get("id")
    if not isinstance(name, str):
        return _NAMELESS
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments.strip("; \n"))
        except NOT_A_CALL as error:
            return ToolCall(name, error=f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(name, error="the arguments are not an object")
    return ToolCall(name, arguments, id=own if isinstance(own, str) else None)
