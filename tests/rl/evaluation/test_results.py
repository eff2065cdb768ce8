"""Evaluations in detail: pass@k, votes, categories, and two models on the same prompts."""

from __future__ import annotations

import asyncio
import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mint
from mint import types
from mint.config_error import ConfigError
from mint.rl import Chat, RLAdapter, RLConfig, run_tools
from mint.rl.evaluation.comparison import (
    compare,
    mcnemar,
    paired_difference,
    sign_test,
)
from mint.rl.evaluation.endpoint import (
    EndpointClient,
    EndpointFailed,
    EndpointTokenizer,
    read_request,
)
from mint.rl.evaluation.evaluator import SetEvaluator
from mint.rl.evaluation.results import PromptResult, SetResult
from mint.rl.messages.rendering import Renderer
from tests.rewards.judges.judge_server import judge_server
from tests.service_fixture import MODEL


def result(*rows: tuple[float | None, ...], category: str = "") -> SetResult:
    prompts = [PromptResult(str(i), category, row, ("",) * len(row)) for i, row in enumerate(rows)]
    return SetResult("holdout", tuple(prompts), 1.0)


@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_mean_over_all_choices_of_k_answers(right: int) -> None:
    answers = [1.0] * right + [0.0] * (5 - right)
    for k in range(1, 6):
        drawn = [any(chosen) for chosen in combinations(answers, k)]
        assert result(tuple(answers)).pass_at(k) == pytest.approx(np.mean(drawn), abs=1e-12)


def test_pass_at_every_power_of_two_and_at_all_answers() -> None:
    assert list(result((1.0,) * 6).passes()) == [1, 2, 4, 6]
    assert list(result((1.0,)).passes()) == [1]


def test_an_answer_that_failed_is_wrong_and_stays_in_the_denominator() -> None:
    found = result((1.0,), (None,), (0.0,), (None,))
    assert found.failed == 2
    assert found.pass_at(1) == found.evaluation.pass_1 == 0.25
    assert found.evaluation.prompts == 4


@pytest.mark.parametrize(
    ("votes", "rewards", "wanted"),
    [
        (("4", "4", "5"), (1.0, 1.0, 0.0), 1.0),
        (("5", "4", "5"), (0.0, 1.0, 0.0), 0.0),
        (("4", "5"), (1.0, 0.0), 0.5),
        ((None, "4", None), (0.0, 1.0, 0.0), 1.0),
        ((None, None), (0.0, None), 0.0),
    ],
)
def test_a_majority_decides_and_a_tie_is_shared(
    votes: tuple[str | None, ...], rewards: tuple[float | None, ...], wanted: float
) -> None:
    assert PromptResult("", "", rewards, votes).majority(1.0) == wanted


def test_categories_are_results_of_their_own() -> None:
    prompts = (
        PromptResult("a", "easy", (1.0,), ("",)),
        PromptResult("b", "hard", (0.0,), ("",)),
        PromptResult("c", "easy", (0.0,), ("",)),
    )
    found = SetResult("holdout", prompts, 1.0).by_category()
    assert {name: each.pass_at(1) for name, each in found.items()} == {"easy": 0.5, "hard": 0.0}
    assert result((1.0,)).by_category() == {}


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for first, second in product(range(8), repeat=2):
        count = first + second
        chances = [math.comb(count, i) / 2**count for i in range(count + 1)]
        seen = chances[first]
        wanted = sum(chance for chance in chances if chance <= seen * (1 + 1e-12))
        assert mcnemar(first, second) == pytest.approx(wanted, rel=1e-9)
    assert 0 < mcnemar(0, 1000) < 1e-300
    assert mcnemar(0, 5000) == 0.0  # and no overflow


def test_the_permutation_test_counts_exchanges() -> None:
    differences = [0.5, -0.25, 1.0, 0.75]
    signs = product((-1, 1), repeat=4)
    sums = [abs(sum(s * d for s, d in zip(sign, differences, strict=True))) for sign in signs]
    wanted = np.mean([each >= abs(sum(differences)) - 1e-12 for each in sums])
    assert sign_test([*differences, 0.0, 0.0]) == wanted
    assert sign_test([0.0]) == 1.0
    many = [1.0] * 30
    assert sign_test(many) == sign_test(many) == pytest.approx(1e-4, rel=0.01)


def newcombe(both: int, only_second: int, only_first: int, neither: int) -> tuple[float, float]:
    """Method 10 of Newcombe's paper of 1998, from the four counts of pairs."""
    count, z = both + only_second + only_first + neither, 1.959963984540054

    def score_interval(right: int) -> tuple[float, float, float]:
        middle, root = 2 * right + z * z, z * math.sqrt(z * z + 4 * right * (1 - right / count))
        whole = 2 * (count + z * z)
        return right / count, (middle - root) / whole, (middle + root) / whole

    p1, l1, u1 = score_interval(both + only_second)
    p2, l2, u2 = score_interval(both + only_first)
    margins = (both + only_second) * (only_first + neither)
    margins *= (both + only_first) * (only_second + neither)
    product = both * neither - only_second * only_first
    product = max(0.0, product - count / 2) if product > 0 else product
    phi = product / math.sqrt(margins) if margins else 0.0
    down = (p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2
    up = (p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2
    return p1 - p2 - math.sqrt(down), p1 - p2 + math.sqrt(up)


@given(st.tuples(*[st.integers(0, 20)] * 4).filter(any))
def test_the_interval_of_a_paired_difference_is_newcombes(cells: tuple[int, int, int, int]) -> None:
    pairs = [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)]
    rows = [pair for pair, count in zip(pairs, cells, strict=True) for _ in range(count)]
    found = paired_difference(*zip(*rows, strict=True))
    assert (found.low, found.high) == pytest.approx(newcombe(*cells), abs=1e-9)
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0


@pytest.mark.parametrize("rates", [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (1.0, 1.0)])
def test_the_interval_has_a_width_where_all_prompts_differ_alike(
    rates: tuple[float, float],
) -> None:
    before, after = (
        result(*[(1.0,) * round(4 * rate) + (0.0,) * round(4 - 4 * rate)] * 8) for rate in rates
    )
    found = compare(before, after)
    assert found.low <= found.difference <= found.high
    assert found.high - found.low > 0.2


@pytest.mark.parametrize(("prompts", "samples"), list(product((8, 20, 60), (1, 4))))
@pytest.mark.parametrize("shape", [(0.3, 0.3), (0.05, 0.05), (2.0, 2.0)], ids=str)
@pytest.mark.parametrize("gain", [0.0, 0.5])
def test_the_interval_contains_the_true_difference_as_often_as_it_says(
    prompts: int, samples: int, shape: tuple[float, float], gain: float
) -> None:
    """The bootstrap that was used before contains it in 22% of the cases of one row."""
    draw = np.random.default_rng(prompts * samples)
    chances = draw.beta(*shape, 20_000)
    better = chances + gain * (1 - chances)
    true, hits = float((better - chances).mean()), 0
    for _ in range(200):
        chosen = draw.integers(0, len(chances), prompts)
        first, second = (
            draw.binomial(samples, each[chosen]) / samples for each in (chances, better)
        )
        found = paired_difference(first, second, samples)
        hits += found.low <= true <= found.high
    assert hits >= 0.9 * 200  # 95%, less three standard deviations of 200 draws


def test_two_models_are_compared_prompt_by_prompt() -> None:
    before = result(*[(0.0,)] * 9, (1.0,), *[(1.0,)] * 10)
    after = result(*[(1.0,)] * 9, (0.0,), *[(1.0,)] * 10)
    found = compare(before, after)
    assert found.p == mcnemar(1, 9)
    assert (found.first, found.second, found.prompts) == (0.55, 0.95, 20)
    assert found.difference == pytest.approx(0.4)
    assert found.low < 0.4 < found.high
    assert "exact McNemar test): better" in str(found)
    assert (found.low, found.high) == pytest.approx(newcombe(10, 9, 1, 0))
    same = compare(before, before)
    assert (same.p, same.difference) == (1.0, 0.0)
    several = compare(result((1.0, 0.0), (0.0, 0.0)), result((1.0, 1.0), (1.0, 0.0)))
    assert several.test == "paired permutation test"
    with pytest.raises(ValueError, match="cover different prompts"):
        compare(result((1.0,)), result((1.0,), (1.0,)))


def test_a_prompt_left_out_of_one_result_is_wrong_there_and_stays_in_the_comparison() -> None:
    prompts = [PromptResult(name, "", (1.0,), ("",)) for name in "abcd"]
    whole = SetResult("holdout", tuple(prompts), 1.0, ("e",))
    part = SetResult("holdout", tuple(prompts[:3]), 1.0, ("d", "e"))
    found = compare(part, whole)
    assert (found.prompts, found.first, found.second) == (4, 0.75, 1.0)
    assert compare(whole, part).difference == -found.difference
    with pytest.raises(ValueError, match="cover different prompts"):
        compare(SetResult("holdout", tuple(prompts[:3]), 1.0), whole)


def test_a_set_without_prompts_is_a_clear_error(client: mint.ServiceClient) -> None:
    class Empty(Echo):
        def build_eval_sets(self) -> dict[str, list[dict[str, Any]]]:
            return {"rest": []}

    cfg = RLConfig(base_model=MODEL, max_tokens=4)
    with pytest.raises(ConfigError, match="The set 'rest' is empty: build_eval_sets"):
        SetEvaluator(Empty(), cfg).of(client, None)
    assert list(SetEvaluator(Empty(), cfg, ["holdout"]).of(client, None)) == ["holdout"]


class Echo(RLAdapter):
    """Pays for bytes below 128, and has sets and categories."""

    def build_dataset(self) -> list[dict[str, Any]]:
        return [
            {"question": f"{i}:", "category": "even" if i % 2 == 0 else "odd"} for i in range(8)
        ]

    def build_holdout(self) -> list[dict[str, Any]]:
        return self.build_dataset()[:4]

    def build_eval_sets(self) -> dict[str, list[dict[str, Any]]]:
        return {"rest": self.build_dataset()[4:]}

    def make_prompt(self, sample: dict[str, Any], tokenizer: Any) -> list[int]:
        messages = [{"role": "user", "content": sample["question"]}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def compute_reward(self, response: str, sample: dict[str, Any]) -> float:
        return sum(character < "\x80" for character in response) / max(1, len(response))


class Talk:
    """The same in two turns, with a tool."""

    def build_dataset(self) -> list[dict[str, int]]:
        return [{"number": i} for i in range(3)]

    build_holdout = build_dataset

    async def rollout(self, task: dict[str, int], chat: Chat) -> float:
        chat.use_tools([self.half])
        chat.system("Talk.")
        chat.user(str(task["number"]))
        await chat.reply()
        chat.tool("1")
        return float(len((await chat.reply()).text) > 0)

    @staticmethod
    def half(number: int) -> float:
        """Halve a number."""
        return number / 2


def test_a_checkpoint_of_the_service_is_evaluated_on_every_set(client: mint.ServiceClient) -> None:
    cfg = RLConfig(base_model=MODEL, max_tokens=4, eval_samples=2, eval_temperature=1.0)
    found = SetEvaluator(Echo(), cfg).of(client, None)
    assert {name: len(each.prompts) for name, each in found.items()} == {"holdout": 4, "rest": 4}
    assert found["rest"].samples == 2
    assert sorted(found["rest"].by_category()) == ["even", "odd"]
    again = SetEvaluator(Echo(), cfg, ["rest"]).of(client, None)
    assert list(again) == ["rest"]
    assert again["rest"] == found["rest"]
    with pytest.raises(ConfigError, match="It has holdout, rest"):
        SetEvaluator(Echo(), cfg, ["res"]).of(client, None)


@pytest.mark.parametrize("task", [Echo(), Talk()], ids=["adapter", "environment"])
def test_a_model_behind_an_endpoint_is_evaluated_on_a_set(
    task: Any, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "tml-rl")
    cfg = RLConfig(base_model=MODEL, max_tokens=4, eval_samples=2, eval_temperature=1.0)
    found = SetEvaluator(task, cfg, ["holdout"]).of_endpoint(f"{service}/oai/api/v1", MODEL)
    rewards = [reward for prompt in found["holdout"].prompts for reward in prompt.rewards]
    assert len(rewards) == 2 * len(task.build_holdout())
    assert None not in rewards


def test_calls_that_a_server_parsed_return_to_it_as_it_sent_them() -> None:
    """OpenAI's server accepts the result of a tool only after a message with that very call."""
    calls = [
        {"id": name, "type": "function", "function": {"name": "half", "arguments": arguments}}
        for name, arguments in (("c1", '{"number": 3}'), ("c2", '{"number": "</tool_call>"}'))
    ]

    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        asked = body["messages"][-1]["role"] == "user"
        return {"content": None, "tool_calls": calls} if asked else "1.5"

    class Calls(Talk):
        async def rollout(self, task: dict[str, int], chat: Chat) -> float:
            chat.use_tools([self.half])
            chat.user("Halve it.")
            for result in await run_tools([self.half], (await chat.reply()).tool_calls):
                chat.tool(result)
            return float((await chat.reply()).text == "1.5")

    with judge_server(answer) as server:
        cfg = RLConfig(base_model=MODEL, max_tokens=64, holdout_size=1)
        found = SetEvaluator(Calls(), cfg, ["holdout"]).of_endpoint(server.url, "any")
    assert found["holdout"].pass_at(1) == 1.0
    asked, called, first, second = server.requests[-1]["messages"]
    assert asked == {"role": "user", "content": "Halve it."}
    assert called == {"role": "assistant", "content": "", "tool_calls": calls}
    assert (first["role"], first["content"], first["tool_call_id"]) == ("tool", "1.5", "c1")
    assert (second["role"], second["tool_call_id"]) == ("tool", "c2")
    assert second["content"].startswith("error: number: Input should be a valid integer")


def test_an_endpoint_gets_the_limit_of_an_answer_under_the_name_it_wants() -> None:
    with judge_server(lambda body: "1.5", refused="max_tokens") as server:
        client = EndpointClient(server.url, "any", retries=0)
        prompt = types.ModelInput.from_ints(
            client.get_tokenizer().apply_chat_template([{"role": "user", "content": "Hi"}])
        )
        params = types.SamplingParams(max_tokens=9)
        for _ in range(2):
            asyncio.run(client.sample_async(prompt, 1, params))
    limits = [
        (each.get("max_tokens"), each.get("max_completion_tokens")) for each in server.requests
    ]
    assert limits == [(9, None), (None, 9), (None, 9)]


def test_half_a_character_from_an_endpoint_is_replaced() -> None:
    with judge_server(lambda body: "4\ud83d") as server:
        client = EndpointClient(server.url, "any", retries=0)
        messages = [{"role": "user", "content": "2 + 2 ="}]
        prompt = types.ModelInput.from_ints(client.get_tokenizer().apply_chat_template(messages))
        params = types.SamplingParams(max_tokens=9)
        answer = asyncio.run(client.sample_async(prompt, 1, params)).sequences[0]
    assert client.get_tokenizer().decode(answer.tokens) == "4?"


def test_an_endpoint_that_refuses_says_what_to_check(service: str) -> None:
    client = EndpointClient(f"{service}/oai/api/v1", "no-such-model", api_key="tml-rl", retries=0)
    params = types.SamplingParams(max_tokens=2, temperature=1.0)
    prompt = types.ModelInput.from_ints(client.get_tokenizer().encode("Hello"))
    with pytest.raises(EndpointFailed, match="Check the address, the model's name"):
        asyncio.run(client.sample_async(prompt, 1, params))


def test_messages_reach_an_endpoint_unchanged() -> None:
    renderer = Renderer(EndpointTokenizer(), [{"type": "function", "function": {"name": "f"}}])
    tokenizer = EndpointTokenizer()
    start = renderer.start(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é"}]
    )
    said = [*tokenizer.encode('<tool_call>{"name": "f"}</tool_call>'), 256]
    more = renderer.follow([{"role": "tool", "content": "2\n3", "name": "f"}], said, ended=True)
    request = read_request(tokenizer.decode([*start, *said, *more]))
    assert request["tools"][0]["function"]["name"] == "f"
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "é"},
        {"role": "assistant", "content": '<tool_call>{"name": "f"}</tool_call>'},
        {"role": "tool", "content": "2\n3", "name": "f"},
    ]
