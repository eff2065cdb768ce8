"""Write the files of ``written.tar.gz``, with the code of an older commit.

    git worktree add ../old COMMIT
    PYTHONPATH=../old/src:../old python tests/older/write.py tests/older/written.tar.gz

It holds a model, the home folder of a service that was killed, the run directory of an interrupted
GRPO run, and the numbers that the code of that commit got. Tests of later code read it.

The archive in the repository was written on 2026-11-16 at 17:19 UTC and added by dbe3496. COMMIT
was not noted: it is a907846, the parent of that commit, or an earlier one.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import mint
from mint.rl import RLAdapter, RLConfig, run_grpo
from tests.service_fixture import RawClient, start_service
from tests.tiny import build_model

TOKENS = [72, 101, 108, 108, 111, 33]


class Vowels(RLAdapter):
    """A task with the same prompts every time."""

    def build_dataset(self) -> list[str]:
        return [f"{number}:" for number in range(12)]

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        return [int(token) for token in tokenizer.encode(sample)]

    def compute_reward(self, response: str, sample: str) -> float:
        return sum(character < "\x80" for character in response) / max(1, len(response))


def settings(folder: Path, steps: int) -> RLConfig:
    return RLConfig(
        base_model="tiny/llama",
        rank=4,
        steps=steps,
        batch_size=3,
        group_size=4,
        max_tokens=6,
        learning_rate=0.01,
        checkpoint_every=1,
        seed=5,
        run_dir=str(folder),
    )


def datum(tokens: list[int]) -> dict[str, Any]:
    count = len(tokens) - 1
    return {
        "model_input": {"chunks": [{"tokens": tokens[:-1], "type": "encoded_text"}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [count]},
            "weights": {"data": [1.0] * count, "dtype": "float32", "shape": [count]},
        },
    }


def gradient(raw: RawClient, run: str, number: int, last: int) -> str:
    data = {"data": [datum([5, 6, 7, last])], "loss_fn": "cross_entropy"}
    return raw.operate("forward_backward", run, number, forward_backward_input=data)


def step(raw: RawClient, run: str, number: int) -> dict[str, Any]:
    return raw.result(raw.operate("optim_step", run, number, adam_params={"learning_rate": 0.01}))


def train(raw: RawClient, run: str, steps: int) -> int:
    """Train some steps and return the number of the next operation."""
    for each in range(steps):
        gradient(raw, run, 2 * each + 1, 8 + each)
        assert "metrics" in step(raw, run, 2 * each + 2)
    return 2 * steps + 1


def greedy(url: str, path: str) -> dict[str, list[float]]:
    """What the weights of a checkpoint say: greedy tokens, and their logprobs."""
    client = mint.ServiceClient(base_url=url, api_key="tml-test")
    sampler = client.create_sampling_client(model_path=path)
    params = mint.types.SamplingParams(max_tokens=8, temperature=0.0)
    prompt = mint.types.ModelInput.from_ints(TOKENS)
    found = sampler.sample(prompt, num_samples=1, sampling_params=params).result().sequences[0]
    return {"tokens": list(found.tokens), "logprobs": list(found.logprobs or [])}


def write(folder: Path) -> None:
    model = build_model(folder / "model")
    service = start_service(folder / "home", model, snapshot_after_bytes=10**9)
    raw = RawClient(service.base_url)

    kept = raw.run()
    following = train(raw, kept, 3)
    state = raw.result(raw.operate("save_weights", kept, following, path="kept"))["path"]
    asked = raw.operate("save_weights_for_sampler", kept, following + 1, path="final")
    final = raw.result(asked)["path"]

    interrupted, whole = raw.run(), raw.run()
    following = train(raw, interrupted, 2)
    assert raw.retrieve(gradient(raw, interrupted, following, 10)).status_code == 200
    ended = train(raw, whole, 3)
    asked = raw.operate("save_weights_for_sampler", whole, ended, path="whole")
    expected = greedy(service.base_url, raw.result(asked)["path"])

    client = mint.ServiceClient(base_url=service.base_url, api_key="tml-test")
    run_grpo(Vowels(), settings(folder / "run", 2), service=client)
    numbers = {
        "state": state,
        "final": final,
        "greedy": greedy(service.base_url, final),
        "interrupted": interrupted,
        "following": following + 1,
        "after": expected,
    }
    (folder / "numbers.json").write_text(json.dumps(numbers, indent=1))
    service.kill()


def without_logs(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uname = entry.gname = ""
    return None if entry.name.endswith(".log") else entry


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            for part in ("model", "home", "run", "numbers.json"):
                archive.add(Path(name) / part, part, filter=without_logs)
