"""The unmodified mindlab-toolkit 0.2.0, in its own environment, against ``mint serve``."""

from __future__ import annotations

import os
import subprocess

import pytest

from .conftest import REPOSITORY

PYTHON = REPOSITORY / ".venvs" / "mindlab" / "bin" / "python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="mindlab-toolkit is not installed; type: make test"
)

SCRIPT = """
import asyncio, importlib.metadata, math
import mint
from mint import types

assert importlib.metadata.version("mindlab-toolkit") == "0.2.0"
assert importlib.metadata.version("tinker") == "0.22.0"
service_client = mint.ServiceClient()
names = [m.model_name for m in service_client.get_server_capabilities().supported_models]
assert "Qwen/Qwen3-0.6B" in names, names
training_client = service_client.create_lora_training_client(base_model="Qwen/Qwen3-0.6B", rank=8)

def datum(**inputs):
    prompt = types.ModelInput.from_ints(tokens=[65, 66, 67])
    return types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": [66, 67, 68], **inputs})

losses = []
for _ in range(8):
    future = training_client.forward_backward([datum(weights=[1.0, 1.0, 1.0])], "cross_entropy")
    training_client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    losses.append(future.result().metrics["loss:sum"])
assert losses[-1] < losses[0], losses

sampling_client = training_client.save_weights_and_get_sampling_client(name="mindlab")
result = sampling_client.sample(
    prompt=types.ModelInput.from_ints(tokens=[65, 66]),
    num_samples=3,
    sampling_params=types.SamplingParams(max_tokens=4, temperature=0.8, stop=[258]),
).result()
assert len(result.sequences) == 3
for sequence in result.sequences:
    assert len(sequence.tokens) == len(sequence.logprobs) >= 1

reinforced = datum(logprobs=[-1.0, -1.0, -1.0], advantages=[0.5, -0.5, 0.5])
training_client.forward_backward([reinforced], "importance_sampling").result()
training_client.optim_step(types.AdamParams(learning_rate=1e-4)).result()
logprobs = training_client.forward([datum(weights=[1.0, 1.0, 1.0])], "cross_entropy").result()
assert all(math.isfinite(x) for x in logprobs.loss_fn_outputs[0]["logprobs"].data)

path = training_client.save_state(name="mindlab").result().path
resumed = service_client.create_training_client_from_state(path)
saved = resumed.save_weights_for_sampler(name="mindlab").result().path
sampler = service_client.create_sampling_client(model_path=saved)
assert sampler.compute_logprobs(types.ModelInput.from_ints(tokens=[65, 66])).result()[0] is None
print("LOSSES", losses[0], losses[-1])
"""


def test_mindlab_toolkit_trains_samples_and_resumes(served: str) -> None:
    result = subprocess.run(
        [str(PYTHON), "-c", SCRIPT],
        env={**os.environ, "MINT_BASE_URL": served, "MINT_API_KEY": "sk-test"},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "LOSSES" in result.stdout
