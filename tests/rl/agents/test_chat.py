"""Conversations: recorded as sampled, never rendered again, masked down to the token."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import mint
from mint import types
from mint.rl import Chat, ContextFull, TurnLimit, parse_tool_calls
from mint.rl.datums.datum import make_datum, values
from mint.rl.messages.rendering import Renderer
from mint.rl.messages.tool_calls import ToolCall
from mint.rl.rollouts.policy import Policy
from tests.service_fixture import MODEL
from tests.tiny import build_tokenizer

Result = TypeVar("Result")


@pytest.fixture
def policy(client: mint.ServiceClient) -> Policy:
    sampler = client.create_sampling_client(base_model=MODEL)
    return Policy(sampler, sampler.get_tokenizer(), temperature=1.0, max_tokens=5)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def encoded(policy: Policy, text: str) -> list[int]:
    return [int(t) for t in policy.tokenizer.encode(text, add_special_tokens=False)]


def words(chat: Chat) -> list[tuple[list[int], list[bool]]]:
    """The tokens of every segment, and which of them were sampled."""
    return [(segment.tokens, segment.sampled) for segment in chat.segments]


async def two_turns(chat: Chat) -> None:
    chat.user("ab")
    await chat.reply()
    chat.tool("cd")
    await chat.reply()


def test_a_conversation_that_extends_is_one_segment_of_exactly_what_was_sampled(
    policy: Policy,
) -> None:
    chat = Chat(policy, seed=1)
    run(two_turns(chat))
    replies = [m for m in chat.trace if m["role"] == "assistant"]
    assert len(chat.segments) == 1
    segment = chat.segments[0]

    start = encoded(policy, "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n")
    assert segment.tokens[: len(start)] == start
    first = segment.sampled.index(True)
    assert first == len(start)
    length = segment.sampled[first:].index(False)
    answer = segment.tokens[first : first + length]
    said = [token for token in answer if token != policy.end_token]
    assert policy.tokenizer.decode(said) == replies[0]["content"]

    end = [] if answer[-1] == policy.end_token else encoded(policy, "<|im_end|>")
    between = encoded(policy, "\n<|im_start|>tool\ncd<|im_end|>\n<|im_start|>assistant\n")
    after = segment.tokens[first + length : -sum(segment.sampled[first + length :])]
    assert after == end + between
    assert all(segment.sampled[-5:])


def test_masks_cover_the_replies_and_nothing_else(policy: Policy) -> None:
    chat = Chat(policy, seed=2)
    run(two_turns(chat))
    segment = chat.segments[0]
    datum = make_datum(segment, advantage=1.0)
    weights = values(datum, "weights")
    assert [bool(w) for w in weights] == segment.sampled[1:]
    assert list(values(datum, "target_tokens")) == segment.tokens[1:]
    assert all(values(datum, "logprobs")[weights == 0] == 0)


def test_logprobs_are_those_of_the_very_tokens_in_their_context(policy: Policy) -> None:
    chat = Chat(policy, seed=3)
    run(two_turns(chat))
    segment = chat.segments[0]
    prompt = types.ModelInput.from_ints(segment.tokens)
    again = policy.client.compute_logprobs(prompt).result()
    for logprob, sampled, other in zip(segment.logprobs, segment.sampled, again, strict=True):
        if sampled:
            assert logprob == pytest.approx(other, abs=1e-4)


def test_a_conversation_that_extends_the_last_one_continues_its_segment(policy: Policy) -> None:
    async def talk(chat: Chat) -> None:
        messages = [{"role": "user", "content": "ab"}]
        messages.append((await chat.complete(messages)).message)
        messages.append({"role": "user", "content": "cd"})
        await chat.complete(messages)

    chat, other = Chat(policy, seed=4), Chat(policy, seed=4)
    run(talk(chat))

    async def said(chat: Chat) -> None:
        chat.user("ab")
        await chat.reply()
        chat.user("cd")
        await chat.reply()

    run(said(other))
    assert len(chat.segments) == 1
    assert words(chat) == words(other)


@pytest.mark.parametrize("change", ["past", "in place", "name", "reply", "shorter"])
def test_a_conversation_whose_earlier_messages_change_becomes_several_segments(
    policy: Policy, change: str
) -> None:
    async def talk(chat: Chat) -> None:
        messages = [{"role": "user", "content": "ab"}]
        messages.append((await chat.complete(messages)).message)
        messages.append({"role": "user", "content": "cd"})
        if change == "past":
            messages[0] = {"role": "user", "content": "AB"}
        elif change == "in place":
            messages[0]["content"] = "AB"
        elif change == "name":
            messages[0]["name"] = "Ann"
        elif change == "reply":
            messages[1] = {"role": "assistant", "content": "something else"}
        else:
            messages = messages[2:]
        await chat.complete(messages)

    chat = Chat(policy, seed=5)
    run(talk(chat))
    assert len(chat.segments) == 2
    assert all(segment.sampled_count for segment in chat.segments)
    assert not any(chat.segments[1].sampled[:5])


def test_a_rollout_ends_at_its_turn_limit_and_its_context(policy: Policy) -> None:
    async def talk(chat: Chat) -> None:
        for _ in range(3):
            chat.user("ab")
            await chat.reply()

    limited = Chat(policy, seed=1, max_turns=2)
    with pytest.raises(TurnLimit, match="max_turns"):
        run(talk(limited))
    assert limited.turns_left == 0
    with pytest.raises(ContextFull, match="restart"):
        run(talk(Chat(policy, seed=1, context_length=60)))


def test_a_failed_reply_changes_nothing(policy: Policy) -> None:
    chat, other = Chat(policy, seed=1, context_length=40), Chat(policy, seed=1)
    for each in (chat, other):
        each.user("ab")
        run(each.reply())
        each.user("cd")
    with pytest.raises(ContextFull, match="context_length is 40"):
        run(chat.reply())
    with pytest.raises(ValueError, match="max_tokens is 0"):
        run(chat.reply(max_tokens=0))
    chat.context_length = None
    run(chat.reply())
    run(other.reply())
    assert words(chat) == words(other)
    assert chat.trace == other.trace


def test_the_last_reply_gets_the_room_that_is_left(policy: Policy) -> None:
    chat = Chat(policy, seed=1, context_length=24)
    chat.user("ab")
    reply = run(chat.reply())
    assert len(chat.segments[0].tokens) <= 24
    assert len(reply.tokens) <= 3 < policy.max_tokens


def test_a_conversation_accepts_no_message_while_a_reply_is_sampled(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    chat.user("ab")

    async def at_once() -> list[Any]:
        first = asyncio.ensure_future(chat.reply())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="A reply is still being sampled"):
            chat.user("cd")
        second = await asyncio.gather(chat.reply(), return_exceptions=True)
        return [*second, await first]

    refused, reply = run(at_once())
    assert "A reply is still being sampled" in str(refused)
    assert chat.segments[0].sampled_count == len(reply.tokens)


def test_nothing_is_recorded_after_the_end(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    chat.user("ab")

    async def ends_before_the_reply() -> None:
        reply = asyncio.ensure_future(chat.reply())
        await asyncio.sleep(0)
        chat.close()
        with pytest.raises(RuntimeError, match="The rollout is over"):
            await reply

    run(ends_before_the_reply())
    assert chat.segments == []
    with pytest.raises(RuntimeError, match="The rollout is over"):
        chat.user("cd")


def test_tools_are_declared_before_the_first_reply_or_after_a_restart(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    chat.use_tools([{"type": "function", "function": {"name": "a"}}])
    chat.user("ab")
    run(chat.reply())
    chat.use_tools([{"type": "function", "function": {"name": "a"}}])
    with pytest.raises(ValueError, match="restart"):
        chat.use_tools([{"type": "function", "function": {"name": "b"}}])
    chat.restart([{"role": "user", "content": "cd"}])
    chat.use_tools([{"type": "function", "function": {"name": "b"}}])


def test_an_example_is_neither_trained_on_nor_counted_as_a_reply(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    chat.user("ab")
    chat.add("assistant", "cd")
    chat.user("ef")
    reply = run(chat.reply())
    assert chat.text == reply.text
    assert chat.segments[0].sampled_count == len(reply.tokens)
    assert "cd" in policy.tokenizer.decode(chat.segments[0].tokens[: -len(reply.tokens)])


def test_the_record_distinguishes_examples_from_sampled_replies(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    chat.system("Be brief.")
    for role, content in [("user", "ab"), ("assistant", "cd"), ("tool", "2"), ("assistant", "x")]:
        chat.add(role, content)
    chat.user("ef")
    first = run(chat.reply())
    chat.tool("3")
    chat.add("assistant", "given")
    chat.user("gh")
    second = run(chat.reply())
    marks = [(m["role"], m["content"], m.get("example", False)) for m in chat.trace]
    assert marks == [
        ("system", "Be brief.", False),
        *(("user", "ab", True), ("assistant", "cd", True), ("tool", "2", True)),
        *(("assistant", "x", True), ("user", "ef", False), ("assistant", first.text, False)),
        *(("tool", "3", False), ("assistant", "given", True), ("user", "gh", False)),
        ("assistant", second.text, False),
    ]
    sampled = [m for m in chat.trace if m["role"] == "assistant" and "example" not in m]
    assert len(sampled) == chat.turns
    assert chat.segments[0].sampled_count == len(first.tokens) + len(second.tokens)


def test_the_mark_of_an_example_is_not_shown_to_the_template(policy: Policy) -> None:
    async def talk(chat: Chat) -> None:
        shown = {"role": "user", "content": "ab", "example": True}
        messages = [shown, {"role": "assistant", "content": "cd"}, {"role": "user", "content": "e"}]
        messages.append((await chat.complete(messages)).message)
        messages.append({"role": "user", "content": "f"})
        await chat.complete(messages)

    chat = Chat(policy, seed=1)
    run(talk(chat))
    assert len(chat.segments) == 1
    assert [m.get("example", False) for m in chat.trace] == [True, True, *[False] * 4]


def test_a_reply_that_is_given_again_after_a_restart_is_marked_as_repeated(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    chat.user("ab")
    reply = run(chat.reply())
    chat.restart([{"role": "user", "content": "AB"}, reply.message])
    chat.user("cd")
    run(chat.reply())
    marks = [set(m) - {"role", "content", "tool_calls"} for m in chat.trace]
    assert marks == [set(), set(), set(), {"repeated"}, set(), set()]


def test_the_same_seed_gives_the_same_rollout(policy: Policy) -> None:
    first, second, third = (Chat(policy, seed=seed) for seed in (7, 7, 8))
    for chat in (first, second, third):
        run(two_turns(chat))
    assert words(first) == words(second) != words(third)


def test_speaking_out_of_turn_is_a_clear_error(policy: Policy) -> None:
    chat = Chat(policy, seed=1)
    with pytest.raises(ValueError, match="The conversation is empty"):
        run(chat.reply())
    chat.user("ab")
    run(chat.reply())
    with pytest.raises(ValueError, match="add a message"):
        run(chat.reply())


def test_what_follows_a_reply_begins_with_the_end_of_the_turn_only_if_it_is_missing() -> None:
    tokenizer = build_tokenizer()
    renderer, end = Renderer(tokenizer), tokenizer.eos_token_id
    message = {"role": "user", "content": "x"}
    cut_off, ended = (
        renderer.follow([message], [65], False),
        renderer.follow([message], [65, end], True),
    )
    assert cut_off == [end, *ended]
    assert tokenizer.decode(ended) == "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_template_gets_plain_lines() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    renderer = Renderer(tokenizer)
    start = renderer.start([{"role": "user", "content": "x"}])
    assert tokenizer.decode(start) == "User: x\nAssistant:"
    assert tokenizer.decode(renderer.follow([{"role": "tool", "content": "y"}], [1], False)) == (
        "\nTool: y\nAssistant:"
    )


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("no call", []),
        (
            'first <tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
            '<tool_call>{"name": "b", "arguments": "{\\"y\\": 2}"}</tool_call>',
            [ToolCall("a", {"x": 1}), ToolCall("b", {"y": 2})],
        ),
        ('<tool_call>{"name": "a"}', [ToolCall("a", {})]),
        (
            "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\n[2]\n"
            "</parameter>\n</function>\n</tool_call>\n<tool_call><function=b></function></tool_call>",
            [ToolCall("a", {"x": "1", "y": [2]}), ToolCall("b")],
        ),
        (
            '<tool_call>{"name": "a", "arguments": {"x": {"y": "}}"}}}</tool_call>',
            [ToolCall("a", {"x": {"y": "}}"}})],
        ),
        (
            '[TOOL_CALLS] [{"name": "a", "arguments": {}, "id": "abcdefghi"}]',
            [ToolCall("a", {}, id="abcdefghi")],
        ),
        ('[TOOL_CALLS] {"name": "a", "arguments": null}', [ToolCall("a", {})]),
        (
            '[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}',
            [ToolCall("a", {"x": 1}), ToolCall("b")],
        ),
        ('<|python_tag|>{"name": "a", "parameters": {"x": "1"}}', [ToolCall("a", {"x": "1"})]),
        (
            '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
            [ToolCall("a", {"x": 1}), ToolCall("b")],
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n"
            '{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [ToolCall("a", {"x": 1})],
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            '<｜tool▁call▁begin｜>b<｜tool▁sep｜>{"y": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [ToolCall("a"), ToolCall("b", {"y": 2})],
        ),
        (
            "<|channel|>analysis<|message|>I could say to=functions.b<|end|><|start|>assistant"
            '<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 1}<|call|>',
            [ToolCall("a", {"x": 1})],
        ),
        ('<think><tool_call>{"name": "a"}</tool_call></think>No.', []),
        ('<think>Hm, <tool_call>{"name": "a"}</tool_call>', []),
        ('as in <tool_call>{"name": "a"}</tool_call></think>No.', []),
        ('</think><tool_call>{"name": "a"}</tool_call>', [ToolCall("a")]),
        ('{"name": "Ann", "age": 7}', []),
        ('{"name": "Ann", "ag', []),
    ],
)
def test_tool_calls_are_read_as_models_write_them(text: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{not json}</tool_call>",
        '<tool_call>["a"]</tool_call>',
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "a", "arguments": {"x": "cut o',
        '<tool_call>{"name": "a", "arguments": "{"}</tool_call>',
        '<tool_call>{"name": "a", "arguments": []}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call><function=a><parameter=x>cut o",
        pytest.param("<tool_call>" + "[" * 100_000, id="deep"),
        pytest.param('<tool_call>{"name": "a", "arguments": {"x": ' + "1" * 5000, id="long"),
        "[TOOL_CALLS] [{",
        "[TOOL_CALLS] [1]",
        '[TOOL_CALLS]a[ARGS]{"x"',
        '{"name": "a", "parameters": {"x": "cut o',
        '<|python_tag|>{"na',
        '<|channel|>commentary to=functions.a<|message|>{"x": "cut o',
    ],
)
def test_a_call_that_cannot_be_read_says_why(text: str) -> None:
    (call,) = parse_tool_calls(text)
    assert call.error
