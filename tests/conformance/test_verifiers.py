"""Environments written for the verifiers package train through the bridge, unmodified.

The environments, the bridge and our client side run where verifiers is installed and torch is not.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service_fixture import start_service

from .environments import REPOSITORY, Client
from .talker import END, build_talker

pytestmark = pytest.mark.slow

VERIFIERS = Client("verifiers")
MODEL = "tiny/shopkeeper"
CALL = '<tool_call>{"name": "price", "arguments": {"item": "tea"}}</tool_call>'
SETTINGS = {
    "MINT_BASE_MODEL": MODEL,
    "MINT_LORA_RANK": "4",
    "MINT_RL_STEPS": "2",
    "MINT_RL_BATCH": "6",
    "MINT_RL_GROUP": "4",
    "MINT_RL_MAX_TOKENS": "90",
    "MINT_RL_LR": "1e-3",
}
SAYINGS = [f"{said}{END}" for said in (CALL, CALL, "6", "7", "It is 6")]
Rollouts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``bridge.py`` saw."""
    if not VERIFIERS.python.exists():
        pytest.skip("verifiers is not installed; type: make conformance-envs")
    folder = tmp_path_factory.mktemp("verifiers")
    model = build_talker(folder / "talker", SAYINGS)
    service = start_service(folder / "home", None, aliases={MODEL: model})
    path = f"{REPOSITORY / 'src'}:{REPOSITORY / 'demos' / 'rl'}"
    try:
        printed = VERIFIERS.run(
            "bridge.py",
            folder=folder,
            PYTHONPATH=path,
            MINT_BASE_URL=service.base_url,
            MINT_CACHE=str(folder / "cache"),
            **SETTINGS,
        )
    finally:
        service.stop()
    result: dict[str, Any] = json.loads(printed)
    return result


def rendered(messages: list[list[Any]]) -> str:
    """Messages as the tiny model's chat template writes them. Some come in parts."""
    texts = [(role, m if isinstance(m, str) else m[0]["text"]) for role, m in messages]
    return "".join(f"<|im_start|>{role}\n{text}{END}\n" for role, text in texts)


@pytest.mark.parametrize("name", ["sums", "shop"])
def test_an_environment_trains_by_its_name(seen: dict[str, Any], name: str) -> None:
    run = seen["runs"][name]
    assert run["path"].startswith("tinker://")
    assert [row["step"] for row in run["metrics"]] == [1, 2]
    assert all(row["train/grad_norm"] > 0 for row in run["metrics"])
    assert {"component/right", "component/num_turns"} <= set(run["metrics"][0])


@pytest.mark.parametrize("name", ["sums", "shop", "echo"])
def test_rewards_are_those_of_the_rubric(seen: dict[str, Any], name: str) -> None:
    rollouts: Rollouts = seen["batches"][name]
    assert not [rollout["error"] for rollout in rollouts if rollout["error"]]
    assert [r["reward"] for r in rollouts] == [r["verifiers"]["reward"] for r in rollouts]
    assert len({rollout["reward"] for rollout in rollouts}) > 1
    weights = {"right": 1.0, "lucky": 1.0, "brief": 0.2}
    for rollout in rollouts:
        parts = [weights.get(name, 0.0) * x for name, x in rollout["components"].items()]
        assert rollout["reward"] == pytest.approx(sum(parts))


@pytest.mark.parametrize("name", ["sums", "shop", "echo"])
def test_only_sampled_tokens_have_weight(seen: dict[str, Any], name: str) -> None:
    trained = [rollout for rollout in seen["batches"][name] if rollout["datums"]]
    assert trained
    for rollout in trained:
        (datum,) = rollout["datums"]
        replies = rollout["verifiers"]["replies"]
        assert datum["weighted"] == [text if cut else f"{text}{END}" for text, cut in replies]
        assert datum["masked_alike"]
        assert rendered(rollout["verifiers"]["messages"]).startswith(datum["text"])


def test_tools_are_called_and_their_answers_are_read_but_not_trained_on(
    seen: dict[str, Any],
) -> None:
    calling = [r for r in seen["batches"]["shop"] if r["components"]["price_calls"]]
    assert calling
    for rollout in calling:
        messages = rollout["verifiers"]["messages"][rollout["verifiers"]["asked"] :]
        assert messages[:2] == [["assistant", CALL], ["tool", "One tea costs 6 coins."]]


def test_calls_beside_the_text_of_an_example_become_text(seen: dict[str, Any]) -> None:
    start = rendered(
        [
            ["user", "Look."],
            ["assistant", '<tool_call>{"name": "look", "arguments": {}}</tool_call>'],
            *[["tool", "Seven."], ["user", "Say 7."]],
        ]
    )
    datums = [datum for rollout in seen["batches"]["closed"] for datum in rollout["datums"]]
    assert datums
    assert all(datum["text"].startswith(start) for datum in datums)


def test_a_conversation_that_never_ends_is_scored_at_the_turn_limit(seen: dict[str, Any]) -> None:
    assert {r["components"]["num_turns"] for r in seen["batches"]["echo"]} == {3.0}


def test_an_environment_that_forgets_makes_a_datum_of_each_context(seen: dict[str, Any]) -> None:
    trained = [rollout["datums"] for rollout in seen["batches"]["forgetful"] if rollout["datums"]]
    assert {len(datums) for datums in trained} == {2}
    for first, second in trained:
        said = first["weighted"][0].removesuffix(END)
        assert first["text"].startswith(rendered([["user", "Say 7."]]))
        assert second["text"].startswith(rendered([["user", f"You said {said}"]]))


def test_an_environment_that_fails_says_why_and_the_others_train(seen: dict[str, Any]) -> None:
    rollouts: Rollouts = seen["batches"]["closed"]
    assert [r["error"] for r in rollouts if r["error"]] == ["RuntimeError: the shop is closed"]
    assert any(rollout["datums"] for rollout in rollouts)
