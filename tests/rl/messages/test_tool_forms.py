"""How common models write tool calls: one row for each form, with its models.

The replies are made up; their marks and notations are those of the families' chat templates.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mint.rl import parse_tool_calls
from mint.rl.messages.tool_calls import _WRAPPERS, THOUGHTS, ToolCall, opens_thought
from tests.rl.messages.script import begun
from tests.rl.messages.templates import FAMILIES

WEATHER = ToolCall("weather", {"city": "Rome", "days": 2})
NOW = ToolCall("now")
JSON_WEATHER = '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}'
JSON_NOW = '{"name": "now", "arguments": {}}'
TEXT_WEATHER = ToolCall("weather", {"city": "Rome", "days": "2"})  # a tool's types make it 2

FORMS: dict[str, tuple[str, list[ToolCall]]] = {
    "Qwen2.5, Qwen3, Hermes 2 and 3, SmolLM3, Granite 4": (
        f"<tool_call>\n{JSON_WEATHER}\n</tool_call>\n<tool_call>\n{JSON_NOW}\n</tool_call>",
        [WEATHER, NOW],
    ),
    "SmolLM2": (f"<tool_call>[{JSON_WEATHER}, {JSON_NOW}]</tool_call>", [WEATHER, NOW]),
    "Qwen, two calls in one wrapper": (
        f"<tool_call>\n{JSON_WEATHER}\n{JSON_NOW}\n</tool_call>",
        [WEATHER, NOW],
    ),
    "Qwen3-Coder, Nemotron 3": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n"
        "2\n</parameter>\n</function>\n</tool_call>",
        [TEXT_WEATHER],
    ),
    "Qwen3-Coder without its wrapper": (
        "Let me see.\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n"
        "2\n</parameter>\n</function>\n</tool_call>",
        [TEXT_WEATHER],
    ),
    "Llama 3.1, 3.2, 3.3": (
        '{"name": "weather", "parameters": {"city": "Rome", "days": 2}}',
        [WEATHER],
    ),
    "Llama 3.1 in an environment": (
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}',
        [NOW],
    ),
    "Llama 3.1, a built-in tool": (
        '<|python_tag|>brave_search.call(query="Rome")',
        [ToolCall("brave_search", {"query": "Rome"})],
    ),
    "Llama 3.1, tools of one's own": (
        '<function=weather>{"city": "Rome", "days": 2}</function>',
        [WEATHER],
    ),
    "Llama 3.2, calls in Python": ('[weather(city="Rome", days=2), now()]', [WEATHER, NOW]),
    "Llama 4": ('<|python_start|>[weather(city="Rome", days=2)]<|python_end|>', [WEATHER]),
    "Mistral 7B v0.3, Nemo, Small 3.1": (
        '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "aB3dE6gH9"}]',
        [ToolCall("now", id="aB3dE6gH9")],
    ),
    "Mistral Small 3.2": (
        '[TOOL_CALLS]weather[CALL_ID]aB3dE6gH9[ARGS]{"city": "Rome", "days": 2}',
        [ToolCall("weather", WEATHER.arguments, id="aB3dE6gH9")],
    ),
    "Magistral, Devstral": (
        '[THINK]Look.[/THINK][TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}'
        "[TOOL_CALLS]now[ARGS]{}",
        [WEATHER, NOW],
    ),
    "gpt-oss": (
        "<|channel|>analysis<|message|>I look it up with to=functions.weather.<|end|><|start|>"
        "assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Rome", "days": 2}<|call|>',
        [WEATHER],
    ),
    "gpt-oss, the recipient in the role": (
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        [NOW],
    ),
    "Gemma 3, as its documentation prompts it": (
        '```tool_code\nprint(weather(city="Rome", days=2))\n```',
        [WEATHER],
    ),
    "Gemma 3, JSON in a code block": (f"```json\n{JSON_WEATHER}\n```", [WEATHER]),
    "FunctionGemma": (
        "<start_function_call>call:weather{city:<escape>Rome<escape>,days:2}<end_function_call>",
        [WEATHER],
    ),
    "Gemma 4": (
        '<|channel>thought\nLook.<channel|><|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        [WEATHER, NOW],
    ),
    "DeepSeek V3, R1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [WEATHER],
    ),
    "DeepSeek V3.1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"city": "Rome", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [WEATHER],
    ),
    "DeepSeek V3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" '
        'string="true">Rome</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [WEATHER],
    ),
    "DeepSeek V4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" '
        'string="true">Rome</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        [WEATHER],
    ),
    "Muse": (
        " to=self<|message|>Look.<|eom|><|start|>assistant to=weather<|message|>"
        '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Rome'
        '</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls>",
        [TEXT_WEATHER],
    ),
    "Apertus": (
        '<|tools_prefix|>[{"weather": {"city": "Rome", "days": 2}}, {"now": {}}]<|tools_suffix|>',
        [WEATHER, NOW],
    ),
    "GigaChat 3": (f"<|message_sep|>\n\nfunction call<|role_sep|>\n{JSON_WEATHER}", [WEATHER]),
    "GigaChat 3.1": (f"<|function_call|>{JSON_WEATHER}", [WEATHER]),
    "Hunyuan 3": (
        "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome"
        "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n"
        "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        [TEXT_WEATHER, NOW],
    ),
    "Kimi K3": (
        '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
        [WEATHER, NOW],
    ),
    "MiniCPM5": (
        '<function name="weather"><param name="city"><![CDATA[Rome]]></param><param name="days">'
        '2</param></function>\n<function name="now"></function>',
        [TEXT_WEATHER, NOW],
    ),
    "Solar": (
        "<|tool_calls|><|tool_call:begin|>aB3dE6gH9<|tool_call:name|>weather<|tool_call:args|>"
        '{"city": "Rome", "days": 2}<|tool_call:end|>',
        [ToolCall("weather", WEATHER.arguments, id="aB3dE6gH9")],
    ),
    "Phi-4-mini": (f"<|tool_call|>[{JSON_WEATHER}]<|/tool_call|>", [WEATHER]),
    "Phi-4-mini, the other form": (f"functools[{JSON_WEATHER}]", [WEATHER]),
    "Granite 3": (f"<|tool_call|>[{JSON_WEATHER}, {JSON_NOW}]", [WEATHER, NOW]),
    "Granite 20B": (f"<function_call> {JSON_WEATHER}", [WEATHER]),
    "GLM-4.5, 4.6": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days"
        "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [TEXT_WEATHER, NOW],
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Rome", "days": 2}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        [ToolCall("weather", WEATHER.arguments, id="functions.weather:0")],
    ),
    "MiniMax-M1": (f"<tool_calls>\n{JSON_WEATHER}\n{JSON_NOW}\n</tool_calls>", [WEATHER, NOW]),
    "MiniMax-M2": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
        [TEXT_WEATHER],
    ),
    "MiniMax-M3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Rome'
        "]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n"
        "]<]minimax[>[</tool_call>",
        [TEXT_WEATHER],
    ),
    "Command A, Command R7B": (
        '<|START_THINKING|>Look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
        '"tool_name": "weather", "parameters": {"city": "Rome", "days": 2}}\n]<|END_ACTION|>',
        [WEATHER],
    ),
    "LFM2": (
        '<|tool_call_start|>[weather(city="Rome", days=2)]<|tool_call_end|>Looking.',
        [WEATHER],
    ),
    "OLMo 3": (
        '<function_calls>weather(city="Rome", days=2)\nnow()</function_calls>',
        [WEATHER, NOW],
    ),
    "Nemotron Nano 2": (f"<TOOLCALL>[{JSON_WEATHER}]</TOOLCALL>", [WEATHER]),
    "Jamba": (f"<tool_calls>[{JSON_WEATHER}]</tool_calls>", [WEATHER]),
    "InternLM": (f"<|action_start|><|plugin|>{JSON_WEATHER}<|action_end|>", [WEATHER]),
    "Seed-OSS": (
        "<seed:think>Look.</seed:think><seed:tool_call><function=weather><parameter=city>Rome"
        "</parameter><parameter=days>2</parameter></function></seed:tool_call>",
        [TEXT_WEATHER],
    ),
    "xLAM": (f"[{JSON_WEATHER}]", [WEATHER]),
    "as chat services write it": (
        '<tool_call>{"type": "function", "function": {"name": "now", "arguments": "{}"}}',
        [NOW],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_calls_of_every_family_are_read(name: str) -> None:
    text, calls = FORMS[name]
    assert parse_tool_calls(text) == calls


SILENT = [n for n, (text, _) in FORMS.items() if not any(close in text for _, close in THOUGHTS)]


@pytest.mark.parametrize("name", SILENT)
def test_a_call_in_a_thought_that_the_prompt_opened_is_none_until_the_thought_is_closed(
    name: str,
) -> None:
    text, calls = FORMS[name]
    assert parse_tool_calls(text, thinking=True) == []
    assert parse_tool_calls(f"Let me see. {text}</think>It is warm.", thinking=True) == []
    assert parse_tool_calls(f"Let me see.</think>{text}", thinking=True) == calls


@pytest.mark.parametrize("name", FORMS)
def test_a_truncated_call_never_raises_and_never_invents_an_argument(
    name: str,
) -> None:
    text, calls = FORMS[name]
    wanted = {call.name: call.arguments for call in calls}
    for end in range(len(text)):
        for call in parse_tool_calls(text[:end]):
            if call.error is None and call.name in wanted:
                assert call.arguments.items() <= wanted[call.name].items()


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[f(1)]",
        "[]",
        '[{"name": "Ann", "age": 7}]',
        "```python\nprint(weather(city='Rome'))\n```",
        "<|python_tag|>print(2 + 2)",
        "A call begins with <function=name>, as you know.",
        "[THINK]I could call [TOOL_CALLS]now[ARGS]{}",
        f"<|channel>thought\nI could call <tool_call>{JSON_NOW}</tool_call>",
        f"<|channel|>analysis<|message|>I could call <tool_call>{JSON_NOW}</tool_call>",
    ],
)
def test_what_only_looks_like_a_call_is_an_answer(text: str) -> None:
    assert parse_tool_calls(text) == []


def test_marks_of_other_families_inside_the_arguments_are_text() -> None:
    text = (
        '<tool_call>{"name": "write", "arguments": {"text": "[TOOL_CALLS] [{}] f()"}}</tool_call>'
    )
    assert parse_tool_calls(text) == [ToolCall("write", {"text": "[TOOL_CALLS] [{}] f()"})]


MARKS = [mark for thought in THOUGHTS for mark in thought]


@pytest.mark.parametrize("mark", [*MARKS, "<think>no</think>", "</think><think>"])
@pytest.mark.parametrize("name", [name for name, (text, _) in FORMS.items() if "Rome" in text])
def test_marks_of_thoughts_inside_the_arguments_are_text(name: str, mark: str) -> None:
    text, calls = FORMS[name]
    city = f"Rome {mark} x"
    said = text.replace("Rome", city)
    wanted = [
        replace(call, arguments={k: city if v == "Rome" else v for k, v in call.arguments.items()})
        for call in calls
    ]
    assert parse_tool_calls(said) == wanted
    assert parse_tool_calls(f"<think>Look.</think>{said}") == wanted
    assert parse_tool_calls(f"Look.</think>{said}", thinking=True) == wanted


CLOSINGS = [closing for _, closing in _WRAPPERS if closing != "```"]
CLOSINGS += ["<|call|>", "<｜tool▁call▁end｜>", "<|tool_call_end|>", "</function>"]


@pytest.mark.parametrize(
    "name",
    [n for n, (text, _) in FORMS.items() if "Rome" in text and any(c in text for c in CLOSINGS)],
)
def test_what_closes_a_call_is_text_inside_its_arguments(name: str) -> None:
    """A string that may contain anything, after prose and before another mark."""
    text, calls = FORMS[name]
    city = f"Rome {' '.join(each for each in CLOSINGS if each in text)} x <think>"
    wanted = [
        replace(call, arguments={k: city if v == "Rome" else v for k, v in call.arguments.items()})
        for call in calls
    ]
    assert parse_tool_calls("I look.\n" + text.replace("Rome", city)) == wanted


def test_a_call_that_cannot_be_read_ends_where_it_is_closed_and_takes_no_time() -> None:
    bad = '<tool_call>{"name": "now", }</tool_call>'
    good = f"<tool_call>{JSON_NOW}</tool_call>"
    assert [bool(call.error) for call in parse_tool_calls(f"So: {bad} {good} {bad}")] == [
        True,
        False,
        True,
    ]
    many = parse_tool_calls("So: " + '<tool_call>{"a": "</tool_call>' * 3000)
    assert len(many) == 3000
    assert all(call.error for call in many)


def test_a_thought_around_calls_hides_those_inside_it_only() -> None:
    call, now = f"<tool_call>{JSON_WEATHER}</tool_call>", f"<tool_call>{JSON_NOW}</tool_call>"
    assert parse_tool_calls(f"{call}<think>or {now}?</think>It is warm.") == [WEATHER]
    assert parse_tool_calls(f"{call}<think>or {now}") == [WEATHER]
    assert parse_tool_calls(f"{call}<think>and</think>{now}") == [WEATHER, NOW]
    assert parse_tool_calls(f"{call} maybe.</think>{now}") == [NOW]
    assert parse_tool_calls(f"The mark <tool_call> <think>{call}</think> is known.") != [WEATHER]


def test_a_reply_that_is_only_a_call_is_read_as_that_whatever_its_arguments_say() -> None:
    text = '{"name": "write", "parameters": {"text": "<tool_call>now</tool_call>"}}'
    assert parse_tool_calls(text) == [ToolCall("write", {"text": "<tool_call>now</tool_call>"})]


@pytest.mark.parametrize(
    "text",
    [
        "<function_calls>weather('Rome')</function_calls>",
        "<function_calls>weather(city=open('x'))</function_calls>",
        "<function_calls>import os</function_calls>",
        '<|tool_call>call:weather{city:<|"|>Ro',
        '<minimax:tool_call><invoke name="weather"><parameter name="city">Ro',
        '<minimax:tool_call><invoke name="now"><parameter name="a">1</invoke></minimax:tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>[]</tool_call>",
    ],
)
def test_a_call_that_cannot_be_carried_out_says_why(text: str) -> None:
    (call,) = parse_tool_calls(text)
    assert call.error


@pytest.mark.parametrize("opening", [opening for opening, _ in THOUGHTS])
def test_a_prompt_that_ends_in_a_thought_is_seen(opening: str) -> None:
    assert opens_thought(f"Hello.{opening}\n")
    assert not opens_thought(f"{opening} Hello.")


def asked(*turns: tuple[str, str]) -> list[list[ToolCall]]:
    """The calls that a chat reads from the replies of a model whose prompts open a thought."""
    chat, _ = begun(FAMILIES["deepseek"].tokenizer(), *turns)

    async def talk() -> list[Any]:
        found = []
        for _ in turns:
            chat.user("What time is it?")
            found.append((await chat.reply()).tool_calls)
        return found

    return asyncio.run(talk())


def test_a_chat_knows_that_its_prompt_opened_a_thought() -> None:
    call = "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    end = "<｜end▁of▁sentence｜>"
    found = asked((f"I may call {call}", "length"), (f"I see.</think>{call}{end}", "stop"))
    assert found == [[], [NOW]]
