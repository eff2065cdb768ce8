"""The codec against the SDK's own encoder and decoder."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker import types
from tinker.proto import request_conv, response_conv
from tinker.types.forward_backward_input import ForwardBackwardInput
from tinker.types.forward_backward_request import ForwardBackwardRequest

from mint.engine.messages import (
    ForwardBackwardResult,
    SampledSequence,
    SampleResult,
    TopkLogprobs,
    UserError,
)
from mint.service.wire import bodies, codec

tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)
floats = st.floats(width=32, allow_nan=False)


def encode(data: list[types.Datum], loss_fn: str = "ppo", config: object = None) -> bytes:
    request = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(
            data=data, loss_fn=loss_fn, loss_fn_config=config
        ),
        model_id="s:train:0",
        seq_id=7,
    )
    return request_conv.forward_backward_request_to_proto(request).SerializeToString()


@st.composite
def tensors(draw: st.DrawFn) -> types.TensorData:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["1-D", "2-D", "sparse"]))
    dtype = draw(st.sampled_from([np.int64, np.float32]))
    values = draw(st.lists(st.integers(-5, 5), min_size=rows * columns, max_size=rows * columns))
    array = np.array(values, dtype)
    if kind == "1-D":
        return types.TensorData.from_numpy(array)
    array = array.reshape(rows, columns)
    if kind == "2-D":
        return types.TensorData.from_numpy(array)
    return types.TensorData.from_torch_sparse(torch.from_numpy(array))


@given(
    st.lists(
        st.tuples(st.lists(tokens, min_size=1, max_size=3), st.dictionaries(st.text(), tensors())),
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_a_request_of_the_sdk_decodes_to_what_it_was(
    datums: list[tuple[list[list[int]], dict[str, types.TensorData]]],
) -> None:
    data = [
        types.Datum(
            model_input=types.ModelInput(chunks=[types.EncodedTextChunk(tokens=c) for c in chunks]),
            loss_fn_inputs=inputs,
        )
        for chunks, inputs in datums
    ]
    config = {"clip_low_threshold": 0.5, "loss_id": "x"}
    decoded = codec.decode_forward_backward(encode(data, "ppo", config), True, False)
    assert decoded.loss_fn == "ppo"
    assert decoded.config == config
    assert len(decoded.data) == len(data)
    for datum, (chunks, inputs) in zip(decoded.data, datums, strict=True):
        assert datum.tokens.tolist() == [token for chunk in chunks for token in chunk]
        assert datum.inputs.keys() == inputs.keys()
        for name, tensor in inputs.items():
            np.testing.assert_array_equal(datum.inputs[name], tensor.to_numpy())
            assert datum.inputs[name].dtype == tensor.to_numpy().dtype


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_logprobs_of_mixed_shapes_reach_the_sdk_unchanged(shapes: list[tuple[int, int]]) -> None:
    arrays = [
        np.arange(n * max(k, 1), dtype=np.float32).reshape((n, k) if k else (n,)) for n, k in shapes
    ]
    losses, entropy = ([factor * array for array in arrays] for factor in (-2, 3))
    result = ForwardBackwardResult(arrays, {"loss:sum": 1.5}, losses, entropy)
    output = response_conv.deserialize_forward_backward_output(
        codec.encode_forward_backward(result)
    )
    assert output.metrics == {"loss:sum": 1.5}
    assert len(output.loss_fn_outputs) == len(arrays)
    for got, sent in zip(output.loss_fn_outputs, arrays, strict=True):
        np.testing.assert_array_equal(got["logprobs"].to_numpy(), sent)
        np.testing.assert_array_equal(got["elementwise_loss"].to_numpy(), -2 * sent)
        np.testing.assert_array_equal(got["entropy"].to_numpy(), 3 * sent)


def test_one_record_per_run_of_equal_width() -> None:
    arrays = [np.zeros((2, k) if k else (2,), np.float32) for k in (0, 0, 3, 3, 0)]
    encoded = codec.encode_forward_backward(ForwardBackwardResult(arrays, {}))
    message = codec.wire.ForwardBackwardOutput.FromString(encoded)
    assert [record.num_datums for record in message.loss_fn_outputs] == [2, 2, 1]


@given(st.lists(st.lists(st.tuples(st.integers(0, 50_000), floats), min_size=1), max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_sample_reaches_the_sdk_unchanged(sequences: list[list[tuple[int, float]]]) -> None:
    result = SampleResult(
        [
            SampledSequence(
                np.array([t for t, _ in s]), np.array([p for _, p in s], np.float32), "stop"
            )
            for s in sequences
        ],
        prompt_logprobs=np.array([np.nan, -1.0], np.float32),
        topk_prompt_logprobs=TopkLogprobs(
            np.array([[0, 0], [5, 6]]), np.array([[-99999, -99999], [-0.5, -1.5]], np.float32)
        ),
    )
    response = response_conv.deserialize_sample_response(codec.encode_sample(result))
    assert [list(zip(s.tokens, s.logprobs, strict=True)) for s in response.sequences] == sequences
    assert response.prompt_logprobs == [None, -1.0]
    assert response.topk_prompt_logprobs == [None, [(5, -0.5), (6, -1.5)]]


def test_stop_reasons() -> None:
    one = np.array([1]), np.array([0.0], np.float32)
    result = SampleResult([SampledSequence(*one, "stop"), SampledSequence(*one, "length")])
    response = response_conv.deserialize_sample_response(codec.encode_sample(result))
    assert [s.stop_reason for s in response.sequences] == ["stop", "length"]
    assert response.prompt_logprobs is None


def test_a_sparse_tensor_of_the_sdk_is_decoded_as_dense() -> None:
    sparse = types.TensorData(
        data=[7, 8, 9],
        dtype="int64",
        shape=[2, 3],
        sparse_crow_indices=[0, 1, 3],
        sparse_col_indices=[2, 0, 1],
    )
    data = types.Datum(
        model_input=types.ModelInput.from_ints([1]), loss_fn_inputs={"target_tokens": sparse}
    )
    [decoded] = codec.decode_forward_backward(encode([data]), True, False).data
    assert decoded.inputs["target_tokens"].tolist() == [[0, 0, 7], [8, 9, 0]]
    assert decoded.inputs["target_tokens"].dtype == np.int64


@pytest.mark.parametrize("dtype", ["DTYPE_INT32", "DTYPE_BFLOAT16", "DTYPE_UNSPECIFIED"])
def test_a_tensor_of_a_type_that_the_sdk_does_not_send_is_refused(dtype: str) -> None:
    message = codec.wire.ForwardBackwardRequest(model_id="s:train:0", seq_id=1, loss_fn="x")
    tensor = message.data.add().loss_fn_inputs["weights"]
    tensor.dtype, tensor.dense = getattr(codec.wire, dtype, 0), b"\0" * 4
    with pytest.raises(UserError, match=r"weights.*send float32 or int64"):
        codec.decode_forward_backward(message.SerializeToString(), True, False)


def test_json_tensors_dense_and_sparse() -> None:
    body = b"""{"model_id": "r", "forward_backward_input": {"loss_fn": "cross_entropy", "data": [
        {"model_input": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}, {"tokens": [3]}]},
         "loss_fn_inputs": {
            "a": {"data": [1, 2.5], "dtype": "float32"},
            "b": {"data": [7, 8, 9], "dtype": "int64", "shape": [2, 3],
                  "sparse_crow_indices": [0, 1, 3], "sparse_col_indices": [2, 0, 1]}}}]}}"""
    [datum] = codec.decode_forward_backward(body, False, False).data
    assert datum.tokens.tolist() == [1, 2, 3]
    assert datum.inputs["a"].tolist() == [1.0, 2.5]
    assert datum.inputs["b"].tolist() == [[0, 0, 7], [8, 9, 0]]


BAD_TENSORS = [
    {"data": [1], "dtype": "float16"},
    {"data": ["x"], "dtype": "int64"},
    {"data": [1.5], "dtype": "int64"},
    {"data": [2**70], "dtype": "int64"},
    {"data": [[1]], "dtype": "int64"},
    {"data": [1, 2], "dtype": "int64", "shape": [3]},
    {"data": [1, 2], "dtype": "int64", "shape": [-1]},
    {"data": [1], "dtype": "int64", "sparse_crow_indices": [0, 1], "sparse_col_indices": [0]},
    {"data": [1], "dtype": "int64", "shape": [1, 2], "sparse_crow_indices": [0, 1],
     "sparse_col_indices": [9]},
    {"data": [], "dtype": "int64", "shape": [10**7, 10**7], "sparse_crow_indices": [0],
     "sparse_col_indices": []},
    "text",
    None,
]  # fmt: skip


@pytest.mark.parametrize("tensor", BAD_TENSORS)
def test_a_bad_tensor_is_a_user_error_that_names_it(tensor: object) -> None:
    datum = {"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {"weights": tensor}}
    body = json.dumps({"forward_backward_input": {"loss_fn": "x", "data": [datum]}}).encode()
    with pytest.raises(UserError, match="weights"):
        codec.decode_forward_backward(body, False, False)


def test_images_are_refused_in_both_encodings() -> None:
    image = types.ImageChunk(data=b"x", format="png", expected_tokens=3)
    datum = types.Datum(model_input=types.ModelInput(chunks=[image]), loss_fn_inputs={})
    with pytest.raises(UserError, match=r"image.*text only"):
        codec.decode_forward_backward(encode([datum]), True, False)
    with pytest.raises(UserError, match=r"dmel.*text only"):
        codec.decode_chunks([{"type": "dmel", "dmel": ""}], "prompt")


def test_the_address_is_read_without_the_rest() -> None:
    body = encode([types.Datum(model_input=types.ModelInput.from_ints([1]), loss_fn_inputs={})])
    assert bodies.read_address(body, True) == bodies.Address("s:train:0", 7)
    assert bodies.read_address(body[:-1] + b"\xff\xff", True) == bodies.Address("s:train:0", 7)
    assert bodies.read_address(b'{"model_id":"m","seq_id":3,"data":5}', False) == bodies.Address(
        "m", 3
    )
    for unreadable in (
        b"",
        b"\xff\xff\xff",
        b"{",
        b'{"seq_id":1}',
        b'{"model_id":"m","seq_id":"1"}',
    ):
        assert bodies.read_address(unreadable, False) is None
    assert bodies.read_address(b"\x10\x01", True) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    bodies.read_address(body, True)
    bodies.read_address(body, False)
    for is_protobuf in (True, False):
        with contextlib.suppress(UserError):
            codec.decode_forward_backward(body, is_protobuf, False)


def test_zstd_is_opened_up_to_a_bound() -> None:
    body = bytes(5_000_000)
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    assert bodies.open_body(packed, "zstd", 5_000_000) == body
    with pytest.raises(bodies.BadBody, match="more than 4000000 bytes"):
        bodies.open_body(packed, "zstd", 4_000_000)
    with pytest.raises(bodies.BadBody, match="damaged"):
        bodies.open_body(b"not zstd", "zstd", 100)
    with pytest.raises(bodies.BadBody, match="gzip"):
        bodies.open_body(body, "gzip", 100)


@pytest.mark.parametrize("is_cut", [True, False])
def test_zstd_that_is_not_one_complete_frame_is_refused(is_cut: bool) -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    start = packer.compress(b"first") + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    rest = packer.compress(b"second") + packer.flush()
    assert bodies.open_body(start + rest, "zstd", 100) == b"firstsecond"
    with pytest.raises(bodies.BadBody, match="not one complete frame") as refused:
        bodies.open_body(start if is_cut else start + rest + start, "zstd", 100)
    assert refused.value.readable == (b"first" if is_cut else b"firstsecond")


def test_the_service_imports_neither_torch_nor_the_sdk() -> None:
    script = (
        "import sys, mint.service.server, mint.service.api.app;"
        "print([m for m in ('torch', 'tinker', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
