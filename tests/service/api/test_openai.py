"""The OpenAI API, driven by the real ``openai`` client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from transformers import AutoTokenizer

import mint
from mint.service.errors import UserError
from mint.service.text.stream import TextStream, TokenScore
from mint.service.text.tokenizer import ModelTokenizer
from tests.service_fixture import MODEL, KeyedService, LiveService

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


@pytest.fixture
def client(service: str) -> OpenAI:
    return OpenAI(base_url=f"{service}/v1", api_key="tml-test", max_retries=0)


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> ModelTokenizer:
    return ModelTokenizer(tiny_model)


@pytest.fixture(scope="session")
def sampler_path(live_service: LiveService) -> str:
    """A saved sampler that answers otherwise than its base model."""
    training = mint.ServiceClient(base_url=live_service.base_url).create_lora_training_client(
        MODEL, rank=4, seed=3
    )
    tokens = list(range(40, 60))
    datum = mint.types.Datum(
        model_input=mint.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * 19},
    )
    for _ in range(3):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(mint.AdamParams(learning_rate=0.1)).result()
    return str(training.save_weights_for_sampler("chatty").result().path)


# ---- models --------------------------------------------------------------------------------------


def test_models_are_base_models_and_own_samplers(client: OpenAI, sampler_path: str) -> None:
    listed = [model.id for model in client.models.list()]
    assert MODEL in listed
    assert sampler_path in listed
    assert client.models.retrieve(MODEL).id == MODEL


def test_an_unknown_model_is_not_found_and_the_message_lists_the_places(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="no/such-model", messages=HELLO)
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"
    assert "Looked in" in error.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such-model")


@pytest.mark.parametrize("path", ["tinker://x:train:0/sampler_weights/a", "tinker://nonsense"])
def test_a_missing_checkpoint_is_not_found(client: OpenAI, path: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model=path, prompt="Hello")


# ---- chat ----------------------------------------------------------------------------------------


def test_a_chat_answers_with_text_usage_and_a_reason(
    client: OpenAI, tokenizer: ModelTokenizer
) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_completion_tokens=5, seed=1
    )
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert answer.usage.prompt_tokens == len(tokenizer.encode(prompt, special=False))
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_the_same_seed_gives_the_same_answers_and_n_of_them(client: OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=8, n=3, seed=seed, temperature=1.0
        )
        return [choice.message.content for choice in answer.choices]

    assert ask(1) == ask(1)
    assert len(set(ask(1))) == 3
    assert ask(1) != ask(2)


def test_a_stream_gives_the_same_text_as_the_whole_answer(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 24,
        "n": 2,
        "seed": 7,
    }
    whole = client.chat.completions.create(**options)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    texts, reasons, usage, chunks = ["", ""], [None, None], None, 0
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            chunks += 1
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert chunks > 10


def test_a_stream_reports_tokens_as_they_are_sampled(client: OpenAI) -> None:
    """Two answers grow together: the second has begun before the first has ended."""
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=40, n=2, seed=7, stream=True, stop=["never this"]
    )
    seen = [
        (choice.index, choice.delta.content, choice.finish_reason)
        for chunk in stream
        for choice in chunk.choices
    ]
    ends = [at for at, (_, _, reason) in enumerate(seen) if reason is not None]
    begun = [min(at for at, (i, text, _) in enumerate(seen) if i == n and text) for n in (0, 1)]
    assert max(begun) < min(ends)


def test_logprobs_name_every_token_and_the_likeliest_others(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 4
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest"
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-4)


def test_a_sampler_path_answers_with_its_own_weights(client: OpenAI, sampler_path: str) -> None:
    def ask(model: str) -> str:
        answer = client.completions.create(model=model, prompt="*+,", max_tokens=12, temperature=0)
        return answer.choices[0].text

    assert ask(sampler_path) != ask(MODEL)
    assert ask(sampler_path.replace("tinker://", "mint://")) == ask(sampler_path)


def test_the_routes_are_also_under_the_vendors_address(service: str) -> None:
    client = OpenAI(base_url=f"{service}/oai/api/v1", api_key="tml-test", max_retries=0)
    assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1).choices


# ---- completions ---------------------------------------------------------------------------------


def test_completions_take_text_tokens_and_lists_of_them(
    client: OpenAI, tokenizer: ModelTokenizer
) -> None:
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "temperature": 0}
    text = client.completions.create(prompt="ab", **ask).choices[0].text
    tokens = tokenizer.encode("ab", special=True)
    assert client.completions.create(prompt=tokens, **ask).choices[0].text == text
    assert client.completions.create(prompt=[tokens], **ask).choices[0].text == text
    many = client.completions.create(prompt=["ab", "cd"], n=2, **ask)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in many.choices][:2] == [text, text]


def test_text_ends_before_a_stop_string(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "ab", "max_tokens": 40, "seed": 5}
    free = client.completions.create(**options).choices[0].text
    stop = free[10:12]
    stopped = client.completions.create(**options, stop=[stop, "never"]).choices[0]
    assert stopped.text == free[: free.find(stop)]
    assert stopped.finish_reason == "stop"
    streamed = client.completions.create(**options, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == stopped.text


def test_no_stop_strings_leave_the_models_own_end(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "prompt": "ab",
        "max_tokens": 200,
        "n": 16,
        "seed": 1,
    }
    without = client.completions.create(**options)
    empty = client.completions.create(**options, stop=[])
    assert [c.text for c in empty.choices] == [c.text for c in without.choices]
    assert "stop" in {choice.finish_reason for choice in without.choices}
    assert not any("<|im_end|>" in choice.text for choice in without.choices)


def test_echo_scores_the_prompt(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Hello", max_tokens=0, echo=True, logprobs=2
    )
    (choice,) = answer.choices
    assert choice.text == "Hello"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list("Hello")
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"stop": 3}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_field_is_named_in_an_openai_error(
    client: OpenAI, fields: dict[str, Any], named: str
) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 2, **fields}
    answer = httpx.post(f"{client.base_url}chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]


def test_nulls_and_neutral_values_ask_for_nothing(client: OpenAI) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 1, "stop": None, "seed": None}
    body |= {"presence_penalty": 0, "response_format": {"type": "text"}, "logit_bias": None}
    assert httpx.post(f"{client.base_url}chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 3}'])
def test_a_body_that_is_not_a_request_is_a_bad_request(client: OpenAI, body: bytes) -> None:
    answer = httpx.post(f"{client.base_url}completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_key_reads_only_its_own_checkpoints(keyed_service: KeyedService) -> None:
    url, keys = keyed_service.live.base_url, keyed_service.keys
    carol, oscar = keys["carol"], keys["oscar"]
    client = mint.ServiceClient(base_url=url, api_key=carol)
    training = client.create_lora_training_client(MODEL, rank=4)
    path = str(training.save_weights_for_sampler("mine").result().path)

    def ask(key: str) -> Any:
        client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        return client.completions.create(model=path, prompt="ab", max_tokens=1)

    assert ask(carol).choices
    with pytest.raises(openai.NotFoundError):
        ask(oscar)
    with pytest.raises(openai.AuthenticationError) as error:
        ask("tml-guess")
    assert error.value.code == "invalid_api_key"


def test_sampling_stops_when_the_client_disconnects(service: str) -> None:
    def reading(name: str) -> float:
        lines = httpx.get(f"{service}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[-1])

    before = reading("mint_tokens_sampled_total")
    body = {"model": MODEL, "prompt": "ab", "max_tokens": 250, "n": 128}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{service}/v1/completions", json=body, timeout=0.1)
    while reading('mint_queue_depth{kind="samples"}') > 0:
        pass
    assert reading("mint_tokens_sampled_total") == before


# ---- templates and text --------------------------------------------------------------------------


def test_a_conversation_is_rendered_as_transformers_does(
    tiny_model: Path, tokenizer: ModelTokenizer
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello, wörld"},
    ]
    theirs = AutoTokenizer.from_pretrained(tiny_model)
    text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ours = tokenizer.render(messages, None, {})
    assert ours == text
    assert tokenizer.encode(ours, special=False) == theirs.encode(text, add_special_tokens=False)


TOOLS_TEMPLATE = """{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- for m in messages %}
{%- if m.role == 'jester' %}{{ raise_exception('no ' + m.role) }}{% endif %}
{%- if loop.index > 9 %}{% break %}{% endif %}
{{- bos_token }}{{ m.role }}: {{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function.arguments.x }}{% endfor %}
{%- generation %}{% endgeneration %}
{%- endfor %}{% if thinking %}<think>{% endif %}{{ strftime_now('%Y')[:2] }}"""


@pytest.fixture
def with_tools(tiny_model: Path, tmp_path: Path) -> ModelTokenizer:
    for file in tiny_model.glob("tokenizer*"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    return ModelTokenizer(tmp_path)


def test_tools_calls_and_variables_reach_the_template(with_tools: ModelTokenizer) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": 41}}}
    messages = [
        {"role": "developer", "content": "D"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    text = with_tools.render(messages, [TOOL], {"thinking": True})
    assert json.loads(text[: text.index("]") + 1]) == [TOOL]
    assert text.endswith("system: D<|im_start|>assistant: 41<think>20")


def test_what_a_template_refuses_is_the_users_mistake(with_tools: ModelTokenizer) -> None:
    with pytest.raises(UserError, match="no jester"):
        with_tools.render([{"role": "jester", "content": "x"}], None, {})


@pytest.mark.parametrize("text", ["plain", "wörld 🎉 end", "日本語", ""])
@pytest.mark.parametrize("stops", [[], ["zzz"], ["🎉"], ["l"], ["ld 🎉 e", "nothing"]])
def test_a_stream_of_tokens_is_the_text_up_to_the_stop(
    tokenizer: ModelTokenizer, text: str, stops: list[str]
) -> None:
    stream = TextStream(tokenizer, stops)
    given = ""
    for token in tokenizer.encode(text, special=False):
        given += stream.feed(TokenScore(token, -1.0, []))[0]
        assert text.startswith(given), "what was given is never taken back"
    given += stream.finish()[0]
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert given == text[: min(cuts, default=len(text))]


def test_the_bytes_of_an_incomplete_character_are_reported(tokenizer: ModelTokenizer) -> None:
    tokens = tokenizer.encode("ö", special=False)
    assert [tokenizer.decode_token_bytes(token) for token in tokens] == [[0xC3], [0xB6]]
