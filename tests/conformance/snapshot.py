"""The contract of the API, written down in ``snapshots/``.

``make snapshots`` writes it again after an intended change; the diff shows what clients will
notice. ``openapi.json`` describes every endpoint, ``protobuf.json`` holds the bytes of each answer
that is not JSON, with the text of the message beside them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from google.protobuf import text_format

from mint.engine.messages import (
    ForwardBackwardResult,
    SampledSequence,
    SampleResult,
    TopkLogprobs,
)
from mint.service.wire import codec
from mint.service.wire.arrays import Csr
from tests.service_fixture import start_service

FOLDER = Path(__file__).parent / "snapshots"


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def table(rows: int, columns: int) -> TopkLogprobs:
    """Made-up token ids and logprobs."""
    token_ids = np.arange(rows * columns).reshape(rows, columns)
    return TopkLogprobs(token_ids, (-token_ids / 4).astype(np.float32))


STOPPED = SampledSequence(ints(7, 8, 258), floats(-0.5, -1.25, -2.0), "stop")
FULL = SampledSequence(ints(9), floats(-0.75), "length", topk_logprobs=table(1, 2))
SPARSE = Csr(ints(0, 1, 2, 3), ints(0, 1, 0), [3, 2])

FORWARD_BACKWARD_ANSWERS = {
    "forward_backward": ForwardBackwardResult(
        [floats(-1.0, -2.0), floats(-0.5)], {"loss:sum": 3.5, "tokens:sum": 3.0}
    ),
    "forward_backward of several targets per position": ForwardBackwardResult(
        [floats(-1.0, -2.0, -3.0, -4.0).reshape(2, 2)], {"loss:sum": 10.0}
    ),
    "forward_backward of datums with one and with several targets": ForwardBackwardResult(
        [floats(-1.0), floats(-1.0, -2.0).reshape(1, 2), floats(-3.0)], {"loss:sum": 7.0}
    ),
}
SAMPLE_ANSWERS = {
    "sample": SampleResult([STOPPED, FULL]),
    "sample with prompt_logprobs": SampleResult([STOPPED], floats(np.nan, -0.25, -4.0)),
    "sample with topk_prompt_logprobs": SampleResult([STOPPED], None, table(3, 2)),
    "sample with target_prompt_logprobs": SampleResult(
        [STOPPED], target_prompt_logprobs=floats(-1.0, 0.0, 0.0, -2.0, -3.0, 0.0).reshape(3, 2)
    ),
    "sample with prompt_alt_tokens": SampleResult([STOPPED], prompt_alt_tokens=table(3, 2)),
}


def protobuf_answers() -> dict[str, dict[str, Any]]:
    """The bytes of each answer, and what they say."""
    answers = {
        name: _described(codec.wire.ForwardBackwardOutput, codec.encode_forward_backward(result))
        for name, result in FORWARD_BACKWARD_ANSWERS.items()
    }
    answers |= {
        name: _described(codec.wire.SampleResponse, codec.encode_sample(result))
        for name, result in SAMPLE_ANSWERS.items()
    }
    sparse = codec.encode_sample(SAMPLE_ANSWERS["sample with target_prompt_logprobs"], SPARSE)
    name = "sample with sparse target_prompt_logprobs"
    return {**answers, name: _described(codec.wire.SampleResponse, sparse)}


def _described(message: Any, encoded: bytes) -> dict[str, Any]:
    text = text_format.MessageToString(message.FromString(encoded))
    return {"bytes": encoded.hex(), "message": text.splitlines()}


def openapi() -> dict[str, Any]:
    """The schema that a running service publishes."""
    with tempfile.TemporaryDirectory() as home:
        service = start_service(Path(home), None, models=())
        try:
            schema: dict[str, Any] = httpx.get(f"{service.base_url}/openapi.json").json()
        finally:
            service.stop()
    return schema


SNAPSHOTS = {"openapi.json": openapi, "protobuf.json": protobuf_answers}


def text_of(name: str) -> str:
    """What a snapshot's file would hold now."""
    return json.dumps(SNAPSHOTS[name](), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in SNAPSHOTS:
        (FOLDER / name).write_text(text_of(name))
        print(f"wrote tests/conformance/snapshots/{name}")


if __name__ == "__main__":
    main()
