"""Conversations with tools under the chat templates of real families, token by token.

A reply is followed by exactly what the template would have written after it: no mark is lost, and
none is there twice, however the reply ended.
"""

from __future__ import annotations

import asyncio
import warnings
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mint.catalog import Catalog
from mint.rl import Chat
from mint.rl.datums.datum import make_datum, values
from mint.rl.messages.rendering import Renderer, TemplateRefused, ToolsNotShown
from tests.rl.messages.script import begun, encoded
from tests.rl.messages.templates import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore::mint.rl.messages.rendering.ToolsNotShown")
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}
]
WITHOUT_TOOLS = ("gemma", "llama2", "cohere")  # families without a tool role
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"

FOLLOWS = {  # what is between a call and the answer, and between the answer and the next
    "qwen2": (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n",
    ),
    "hermes": (
        "\n<|im_start|>tool\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama3": (
        '<|start_header_id|>ipython<|end_header_id|>\n\n"4"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|start_header_id|>user<|end_header_id|>\n\nThanks.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama2": ("<|im_start|>[INST] 4 [/INST]", "<|im_start|>[INST] Thanks. [/INST]"),
    "mistral": (
        '[TOOL_RESULTS]{"content": "4", "call_id": "aB3dE6gH9"}[/TOOL_RESULTS]',
        '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "add", "description": '
        '"Adds.", "parameters": {}}}][/AVAILABLE_TOOLS][INST]Thanks.[/INST]',
    ),
    "gemma": (
        "\n<start_of_turn>user\n4<end_of_turn>\n<start_of_turn>model\n",
        "\n<start_of_turn>user\nThanks.<end_of_turn>\n<start_of_turn>model\n",
    ),
    "deepseek": (
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>4<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜><｜Assistant｜><think>\n",
        "<｜User｜>Thanks.<｜Assistant｜><think>\n",
    ),
    "deepseek 3.2": (
        '\n\n<results of="add">\n<result>4</result>\n</results>\n\n',
        "<｜User｜>Thanks.<｜Assistant｜>",
    ),
    "harmony": (
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"4"<|end|>'
        "<|start|>assistant",
        "<|start|>user<|message|>Thanks.<|end|><|start|>assistant",
    ),
    "glm": ("\n4<|assistant|>", "\nThanks.<|assistant|>"),
    "gemma4": (
        "<|tool_response>add:4<tool_response|>",
        "\n<|turn>user\nThanks.<turn|>\n<|turn>assistant\n",
    ),
    "cohere": (
        "<|START|>4<|END|><|START|><|ANSWER|>",
        "<|START|>Thanks.<|END|><|START|><|ANSWER|>",
    ),
    "qwen3 thinking": (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n",
        "\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    "smollm2": (
        "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n",
        "\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n",
    ),
    "smollm3": (
        "\n<|im_start|>user\n4<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n",
        "\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n",
    ),
    "phi4": (
        "<|im_start|>tool<|im_sep|>4<|im_end|><|im_start|>assistant<|im_sep|>",
        "<|im_start|>user<|im_sep|>Thanks.<|im_end|><|im_start|>assistant<|im_sep|>",
    ),
    "phi4-mini": (
        "<|tool_response|>4<|end|><|assistant|>",
        "<|user|>Thanks.<|end|><|assistant|>",
    ),
    "granite": (
        "\n<|start_of_role|>tool_response<|end_of_role|>4<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>",
        "\n<|start_of_role|>user<|end_of_role|>Thanks.<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "kimi": (
        "<|im_system|>tool<|im_middle|>4<|im_end|><|im_assistant|>assistant<|im_middle|>",
        "<|im_user|>user<|im_middle|>Thanks.<|im_end|><|im_assistant|>assistant<|im_middle|>",
    ),
}
FOLLOWS["qwen3"] = FOLLOWS["qwen2"]
CLOSED_BY_TEMPLATE = {  # where the template closes a turn in another way than the model does
    "llama3": ("<|eot_id|>", "<|eot_id|>"),
    "llama2": (" </s>", " </s>"),
    "harmony": ("<|call|>", "<|end|>"),
}


def spans(chat: Chat) -> list[tuple[str, bool]]:
    """What the only segment is made of: given and sampled texts in turn."""
    (segment,) = chat.segments
    runs = groupby(zip(segment.tokens, segment.sampled, strict=True), key=itemgetter(1))
    decode = chat.policy.tokenizer.decode
    return [(decode([token for token, _ in run]), sampled) for sampled, run in runs]


async def talk(chat: Chat, role: str) -> None:
    """A question, a call, its result in a message of some role, an answer, and thanks."""
    chat.use_tools(TOOLS)
    chat.user("Add 2.")
    assert (await chat.reply()).tool_calls[0].arguments == {"a": 2}
    chat.add(role, "4")
    assert (await chat.reply()).text.startswith("It is 4.")
    chat.user("Thanks.")
    await chat.reply()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
def test_a_reply_is_followed_by_what_the_template_writes_and_nothing_twice(
    name: str, ended: bool
) -> None:
    family = FAMILIES[name]
    tokenizer, (after_answer, after_call) = family.tokenizer(), family.ends
    said = [family.call, "It is 4."]
    reason = "stop" if ended else "length"
    sampled = [said[0] + after_call, said[1] + after_answer] if ended else said
    chat, script = begun(tokenizer, *((text, reason) for text in sampled), ("Bye.", "length"))
    asyncio.run(talk(chat, "user" if name in WITHOUT_TOOLS else "tool"))

    start = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Add 2."}],
        tools=TOOLS,
        tokenize=False,
        add_generation_prompt=True,
    )
    closed = CLOSED_BY_TEMPLATE.get(name, (after_call, after_answer))
    given = [text if ended else end + text for end, text in zip(closed, FOLLOWS[name], strict=True)]
    assert spans(chat) == [
        *((start, False), (sampled[0], True), (given[0], False)),
        *((sampled[1], True), (given[1], False), ("Bye.", True)),
    ]
    assert script.read[-1] == chat.segments[0].tokens[: -len("Bye.")]


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_models_tokens_are_trained_on_with_their_own_logprobs(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    turns = [(family.call + family.ends[1], "stop"), ("It is 4.", "length"), ("Bye.", "length")]
    chat, _ = begun(tokenizer, *turns)
    asyncio.run(talk(chat, "user" if name in WITHOUT_TOOLS else "tool"))
    (segment,) = chat.segments
    datum = make_datum(segment, advantage=1.0)
    targets, weights = values(datum, "target_tokens"), values(datum, "weights")
    trained = [int(token) for token, weight in zip(targets, weights, strict=True) if weight]
    replies = [encoded(tokenizer, text) for text, _ in turns]
    assert trained == [token for reply in replies for token in reply]
    assert list(values(datum, "logprobs")[weights > 0]) == [
        -(1.0 + i) for reply in replies for i in range(len(reply))
    ]


def whole(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "hermes", "mistral", "llama3", "gemma"])
def test_a_conversation_reads_as_if_the_template_had_rendered_it_whole(name: str) -> None:
    family = FAMILIES[name]
    tokenizer, end = family.tokenizer(), family.ends[0]
    chat, _ = begun(tokenizer, (f"Four.{end}", "stop"), ("Fi", "length"), ("Bye.", "length"))

    async def count() -> None:
        chat.user("Two and two?")
        await chat.reply()
        chat.user("And one?")
        await chat.reply()
        chat.user("Thanks.")
        await chat.reply()

    asyncio.run(count())
    said = ["Two and two?", "Four.", "And one?", "Fi", "Thanks."]
    roles = ["user", "assistant"] * 3
    messages = [{"role": r, "content": text} for r, text in zip(roles, said, strict=False)]
    assert tokenizer.decode(chat.segments[0].tokens) == whole(tokenizer, messages) + "Bye."


def test_thoughts_stay_where_they_were_sampled_though_the_template_would_drop_them() -> None:
    family = FAMILIES["qwen3"]
    tokenizer = family.tokenizer()
    thinking = "<think>\nEasy.\n</think>\n\nFour."
    chat, _ = begun(tokenizer, (f"{thinking}<|im_end|>", "stop"), ("Bye.", "length"))

    async def ask() -> None:
        chat.user("Two and two?")
        await chat.reply()
        chat.user("Thanks.")
        await chat.reply()

    asyncio.run(ask())
    assert spans(chat)[1:3] == [
        (f"{thinking}<|im_end|>", True),
        ("\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n", False),
    ]
    asked = {"role": "user", "content": "Two and two?"}
    thanked = {"role": "user", "content": "Thanks."}
    assert "Easy." not in whole(
        tokenizer, [asked, {"role": "assistant", "content": thinking}, thanked]
    )


def test_a_conversation_without_its_thoughts_is_another_datum() -> None:
    tokenizer = FAMILIES["qwen3"].tokenizer()
    turns = [("<think>\nEasy.\n</think>\n\nFour.<|im_end|>", "stop"), ("Bye.", "length")]
    chat, script = begun(tokenizer, *turns)
    messages = [{"role": "user", "content": "Two and two?"}]

    async def ask() -> None:
        reply = await chat.complete(messages)
        shown = reply.text.rpartition("</think>")[2].strip()
        messages.append({"role": "assistant", "content": shown})
        messages.append({"role": "user", "content": "Thanks."})
        await chat.complete(messages)

    asyncio.run(ask())
    assert len(chat.segments) == 2
    assert tokenizer.decode(script.read[1]) == whole(tokenizer, messages)


@pytest.mark.parametrize("stop", ["</tool_call>", "<|endoftext|>"], ids=["a text", "a mark"])
def test_a_reply_that_a_text_stopped_is_closed_by_the_template(stop: str) -> None:
    tokenizer = FAMILIES["qwen2"].tokenizer()
    said = f'<tool_call>{{"name": "add"}}{stop}'
    chat, script = begun(tokenizer, (said, "stop"), ("Bye.", "length"))

    async def ask() -> None:
        chat.user("Add 2.")
        await chat.reply(stop=stop)
        chat.tool("4")
        await chat.reply()

    asyncio.run(ask())
    assert script.stops[0] == [stop]
    assert spans(chat)[1] == (said, True)
    assert spans(chat)[2][0].startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_the_results_of_several_calls_carry_their_calls_ids_in_order() -> None:
    tokenizer = FAMILIES["mistral"].tokenizer()
    calls = '[TOOL_CALLS][{"name": "a", "arguments": {}, "id": "aaaaaaaaa"}, {"name": "b"}]</s>'
    chat, _ = begun(tokenizer, (calls, "stop"), ("Bye.", "length"))

    async def ask() -> None:
        chat.user("Both.")
        await chat.reply()
        chat.tool("1")
        chat.tool("2")
        await chat.reply()

    asyncio.run(ask())
    assert spans(chat)[2][0] == (
        '[TOOL_RESULTS]{"content": "1", "call_id": "aaaaaaaaa"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS]{"content": "2", "call_id": "call00001"}[/TOOL_RESULTS]'
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_mark_that_ended_a_reply_is_not_part_of_its_text(name: str) -> None:
    family = FAMILIES[name]
    chat, _ = begun(family.tokenizer(), (f"Four.{family.ends[1]}", "stop"))
    chat.user("Two and two?")
    assert asyncio.run(chat.reply()).text == "Four." + family.ends[1].rpartition("<")[0]


def test_a_template_that_rejects_messages_is_quoted() -> None:
    tokenizer = FAMILIES["gemma"].tokenizer()
    chat, _ = begun(tokenizer, ("Four.<end_of_turn>", "stop"))
    chat.system("Be brief.")
    chat.user("Two and two?")
    with pytest.raises(TemplateRefused, match=r"\(system, user\): System role not supported"):
        asyncio.run(chat.reply())
    chat.restart([{"role": "user", "content": "Two and two?"}])
    assert asyncio.run(chat.reply()).text == "Four."
    chat.tool("4")
    with pytest.raises(TemplateRefused, match=r"Roles must alternate.*chat\.user"):
        asyncio.run(chat.reply())


@pytest.mark.parametrize(
    ("name", "system", "warned"),
    [("smollm2", "Be brief.", True), ("smollm2", "Call add(a).", False), ("qwen2", "", False)],
)
def test_tools_that_a_template_leaves_out_are_warned_about(
    name: str, system: str, warned: bool
) -> None:
    family = FAMILIES[name]
    chat, _ = begun(family.tokenizer(), (f"Four.{family.ends[1]}", "stop"))
    chat.use_tools(TOOLS)
    if system:
        chat.system(system)
    chat.user("Two and two?")

    async def ask() -> None:
        await chat.reply()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(ask())
    hidden = [each for each in caught if each.category is ToolsNotShown]
    assert all(each.filename == __file__ for each in hidden)  # the line that awaits the reply
    assert [str(each.message).partition("so ")[2][:37] for each in hidden] == (
        ["the model does not see add. Describe "] if warned else []
    )


def test_no_message_is_lost_where_a_template_leaves_it_out() -> None:
    chat, _ = begun(FAMILIES["cohere"].tokenizer(), ("Four.<|END_ANSWER|><|END|>", "stop"))
    chat.system("Be brief.")
    chat.user("Two and two?")
    with pytest.raises(TemplateRefused, match=r"\(system, user\): it leaves some of them out"):
        asyncio.run(chat.reply())
    chat.restart([{"role": "user", "content": "Two and two?"}])
    asyncio.run(chat.reply())
    chat.tool("4")
    with pytest.raises(TemplateRefused, match="it leaves some of them out"):
        asyncio.run(chat.reply())


@pytest.mark.model
def test_smollm2_as_it_is() -> None:
    tokenizer = AutoTokenizer.from_pretrained(Catalog().locate(SMOLLM2))
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    chat, _ = begun(tokenizer, (f"{call}<|im_end|>", "stop"), ("It is", "length"), ("By", "length"))

    async def ask() -> None:
        chat.user("Add 2.")
        await chat.reply()
        chat.tool("4")
        await chat.reply()
        chat.user("Thanks.")
        await chat.reply()

    asyncio.run(ask())
    said = [("user", "Add 2."), ("assistant", call), ("tool", "4"), ("assistant", "It is")]
    messages = [{"role": role, "content": text} for role, text in [*said, ("user", "Thanks.")]]
    tokens = encoded(tokenizer, whole(tokenizer, messages)) + encoded(tokenizer, "By")
    assert chat.segments[0].tokens == tokens


def test_a_plain_text_gets_the_initial_tokens_of_the_model_only_once() -> None:
    pieces = ["<s>", "</s>", "▁", *(chr(code) for code in range(10, 127))]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    own.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    own.decoder = decoders.Metaspace(prepend_scheme="first")
    own.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="</s>")
    renderer = Renderer(tokenizer)
    message = {"role": "user", "content": "x"}
    names = tokenizer.convert_ids_to_tokens
    assert "".join(names(renderer.start([message]))) == "<s>▁User:▁x\nAssistant:"
    assert "".join(names(renderer.follow([message], [5, 1], True))) == "\nUser:▁x\nAssistant:"
