"""The code blocks of the documents this project starts from run as they are written there.

The documents have lost their indentation, so the blocks are kept in ``seed_blocks/``, indented
again and otherwise untouched; where the documents are at hand, a test compares them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mint
from mint import types

BLOCKS = Path(__file__).parent / "seed_blocks"
SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
DOCUMENTS = {"custom_reward": "000_*.txt", "overview": "001_*.txt"}


class FillIn(ast.NodeTransformer):
    """Puts the variable ``datums`` where a document writes ``[...]`` for the reader's own data."""

    def visit_List(self, node: ast.List) -> ast.expr:
        match node.elts:
            case [ast.Constant(value=value)] if value is ...:
                return ast.copy_location(ast.Name("datums", ast.Load()), node)
        return node


def run(block: str, **names: Any) -> dict[str, Any]:
    """Execute a block with some names already defined, and return what it defines."""
    source = (BLOCKS / f"{block}.py").read_text()
    tree = ast.fix_missing_locations(FillIn().visit(ast.parse(source)))
    exec(compile(tree, block, "exec"), names)
    return names


def rl_datum() -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints([65, 66, 67]),
        loss_fn_inputs={
            "target_tokens": [66, 67, 68],
            "weights": [0.0, 1.0, 1.0],
            "logprobs": [0.0, -5.0, -5.0],
            "advantages": [0.0, 0.5, 0.5],
        },
    )


@pytest.fixture(scope="module")
def overview(tiny_model: Path, sdk_folder: Path) -> dict[str, Any]:
    """What the overview's first block leaves behind after two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINT_HOME", str(sdk_folder / "home"))
        patch.setenv("MINT_CACHE", str(sdk_folder / "cache"))
        patch.setenv("MINT_MODELS", f"Qwen/Qwen3-0.6B={tiny_model}")
        return run("overview_loop", num_steps=2, datums=[rl_datum()])


def test_the_minimal_loop_trains_and_makes_samplers(overview: dict[str, Any]) -> None:
    assert type(overview["training_client"]) is mint.TrainingClient
    assert type(overview["sampling_client"]) is mint.SamplingClient
    assert overview["adam_params"].betas == (0.9, 0.999)


def test_the_sampling_block_gives_tokens_with_logprobs(overview: dict[str, Any]) -> None:
    names = run("overview_sampling", types=types, **pick(overview, "tokenizer sampling_client"))
    sequences = names["result"].sequences
    assert len(sequences) == 8
    assert all(1 <= len(sequence.tokens) == len(sequence.logprobs) <= 16 for sequence in sequences)
    assert len(names["logprobs"]) == len(sequences[-1].tokens)


def test_the_datum_block_and_the_usage_block_train_on_samples(overview: dict[str, Any]) -> None:
    clients = pick(overview, "tokenizer sampling_client training_client")
    sampled = run("overview_sampling", types=types, **clients)
    built = run(
        "overview_datums",
        types=types,
        tokenizer=clients["tokenizer"],
        res=sampled["result"],
        prompt_tokens=sampled["prompt_tokens"],
        gold_answer=8,
        extract_answer=lambda text: 8 if "8" in text else None,
        datums=[],
    )
    assert len(built["datums"]) == 8
    assert sum(built["advs"]) == pytest.approx(0)
    used = run("overview_usage", types=types, datums=built["datums"], **clients)
    assert len(used["result"].loss_fn_outputs) == 8


def test_the_custom_reward_blocks_score_and_train(overview: dict[str, Any]) -> None:
    @dataclass
    class RewardBreakdown:
        total: float
        format_reward: float
        distance_reward: float
        exact_bonus: float

    def extract_prediction(response: str) -> int | None:
        return int(found[0]) if (found := re.findall(r"-?\d+", response)) else None

    names = run(
        "custom_reward_breakdown",
        RewardBreakdown=RewardBreakdown,
        extract_prediction=extract_prediction,
    )
    score = names["compute_reward_breakdown"]
    group_rewards = [score(text, 42).total for text in ("42", "40", "none")]
    assert group_rewards == [1.0, pytest.approx(0.2 + 0.5 * (1 - 2 / 42)), 0.0]
    trained = run(
        "custom_reward_training",
        types=types,
        training_client=overview["training_client"],
        training_datums=[rl_datum()],
        group_rewards=group_rewards,
        RL_LR=2e-5,
    )
    assert sum(trained["advantages"]) == pytest.approx(0)


def pick(names: dict[str, Any], wanted: str) -> dict[str, Any]:
    return {name: names[name] for name in wanted.split()}


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the documents are not part of the repository")
@pytest.mark.parametrize("block", sorted(path.stem for path in BLOCKS.glob("*.py")))
def test_the_blocks_are_the_documents_own_lines(block: str) -> None:
    pattern = next(value for key, value in DOCUMENTS.items() if block.startswith(key))
    text = next(SEEDS.glob(pattern)).read_text()
    lines = [line.strip() for line in (BLOCKS / f"{block}.py").read_text().splitlines()]
    position = 0
    for line in lines:
        found = text.find(line, position)
        assert found >= 0, f"{line!r} does not come after the lines before it in the document"
        position = found + len(line)
