"""The two types that extend tinker's, as they are sent to the service."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tinker

import mint
from mint import types


def on_the_wire(request: object) -> dict[str, object]:
    from tinker._compat import model_dump

    fields = model_dump(request, exclude_unset=False, exclude_none=True, mode="json")
    return json.loads(json.dumps(fields))


def sample_request(params: types.SamplingParams) -> dict[str, object]:
    prompt = types.ModelInput.from_ints([1, 2])
    request = types.SampleRequest(prompt=prompt, sampling_params=params)
    return on_the_wire(request)["sampling_params"]


def optim_request(params: types.AdamParams) -> dict[str, object]:
    return on_the_wire(types.OptimStepRequest(optim_params=params, model_id="run", seq_id=1))


def test_stop_token_ids_are_sent_as_stop() -> None:
    sent = sample_request(types.SamplingParams(max_tokens=16, stop_token_ids=[2]))
    assert sent == {"max_tokens": 16, "stop": [2], "temperature": 1, "top_k": -1, "top_p": 1}


def test_stop_token_ids_join_a_stop_of_ids() -> None:
    assert sample_request(types.SamplingParams(stop=[5, 2], stop_token_ids=[2, 7]))["stop"] == [
        5,
        2,
        7,
    ]


def test_no_stop_token_ids_leave_the_stop_alone() -> None:
    assert "stop" not in sample_request(types.SamplingParams(stop_token_ids=[]))
    assert sample_request(types.SamplingParams(stop=["\n"], stop_token_ids=[]))["stop"] == ["\n"]
    assert sample_request(types.SamplingParams(stop=[]))["stop"] == []


@pytest.mark.parametrize("stop", ["\n", ["\n"], ["a", "b"]])
def test_stop_token_ids_do_not_mix_with_strings(stop: object) -> None:
    with pytest.raises(ValueError, match="Pass all stops as token ids"):
        types.SamplingParams(stop=stop, stop_token_ids=[2])


def test_a_tokenizer_without_an_end_token_is_explained() -> None:
    with pytest.raises(ValueError, match="leave stop_token_ids out"):
        types.SamplingParams(stop_token_ids=[None])


def test_adam_has_the_documented_defaults() -> None:
    assert optim_request(types.AdamParams())["adam_params"] == {
        "learning_rate": 2e-5,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    }


def test_every_adam_setting_is_sent() -> None:
    params = types.AdamParams(
        learning_rate=1e-3, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1, grad_clip_norm=1.0
    )
    assert optim_request(params) == {
        "model_id": "run",
        "seq_id": 1,
        "type": "optim_step",
        "adam_params": {
            "learning_rate": 1e-3,
            "beta1": 0.8,
            "beta2": 0.99,
            "eps": 1e-6,
            "weight_decay": 0.1,
            "grad_clip_norm": 1.0,
        },
    }


def test_betas_can_be_read_back_however_they_were_given() -> None:
    assert types.AdamParams(beta2=0.95).betas == (0.9, 0.95)
    assert types.AdamParams(betas=[0.5, 0.6]).betas == (0.5, 0.6)


def test_betas_given_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="but not both"):
        types.AdamParams(betas=(0.9, 0.99), beta1=0.8)


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="lr"):
        types.AdamParams(lr=1e-3)


def test_mint_exports_everything_that_tinker_exports() -> None:
    for name in set(tinker.__all__) - {"__title__"}:
        assert hasattr(mint, name), name
    assert types.Datum is tinker.types.Datum
    assert mint.AdamParams is types.AdamParams
    assert mint.SamplingParams is types.SamplingParams
    assert "ServiceClient" in dir(mint)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mint.nonsense  # noqa: B018


def test_importing_mint_loads_neither_the_sdk_nor_torch() -> None:
    code = "import mint, sys; print(sorted({'tinker', 'torch'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
