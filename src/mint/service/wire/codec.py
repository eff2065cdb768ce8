"""Bytes to messages and back: the only file that knows the encodings of the protocol.

The protobuf classes are loaded from a file of the ``tinker`` package without importing the package,
because that would import torch.
"""

import math
import runpy
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distribution
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic_core import from_json

from mint.engine.messages import (
    Datum,
    DistillDatum,
    ForwardBackward,
    ForwardBackwardResult,
    IntArray,
    SampleResult,
    TopkLogprobs,
    UserError,
)
from mint.service.wire.arrays import CellBudget, Csr, shaped

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
MAX_TARGET_CELLS = 1 << 24

_MESSAGES = distribution("tinker").locate_file("tinker/proto/tinker_public_pb2.py")
wire: Any = SimpleNamespace(**runpy.run_path(str(_MESSAGES)))

_INT32, _INT64, _FLOAT32 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f4")
_NUMPY_OF_WIRE: dict[int, np.dtype[Any]] = {wire.DTYPE_FLOAT32: _FLOAT32, wire.DTYPE_INT64: _INT64}
_NUMPY_OF_JSON: dict[str, np.dtype[Any]] = {"float32": _FLOAT32, "int64": _INT64}


# ---- forward_backward requests ---------------------------------------------------------------


def decode_forward_backward(body: bytes, is_protobuf: bool, forward_only: bool) -> ForwardBackward:
    """Decode a ``forward_backward`` or ``forward`` body. Raises UserError."""
    if not is_protobuf:
        return _decode_json_request(body, forward_only)
    try:
        message = wire.ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise UserError(
            "The request is not a valid ForwardBackwardRequest message; it may have been "
            "truncated. Send it again."
        ) from error
    cells = CellBudget()
    data = [_decode_protobuf_datum(i, datum, cells) for i, datum in enumerate(message.data)]
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        config[key] = value.text if value.WhichOneof("value") == "text" else value.number
    return ForwardBackward(data, message.loss_fn, config, message.forward_only)


def _decode_protobuf_datum(index: int, datum: Any, cells: CellBudget) -> Datum:
    pieces = []
    for chunk in datum.model_input:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise _unsupported_chunk(f"data[{index}].model_input", kind)
        pieces.append(_view(chunk.encoded_text.tokens, _INT32, f"data[{index}] tokens"))
    inputs = {
        name: _decode_protobuf_tensor(tensor, f"data[{index}].loss_fn_inputs[{name!r}]", cells)
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return Datum(_concatenate(pieces), inputs)


def _decode_protobuf_tensor(tensor: Any, where: str, cells: CellBudget) -> NDArray[Any]:
    dtype = _NUMPY_OF_WIRE.get(tensor.dtype)
    if dtype is None:
        raise UserError(f"{where} has an unsupported dtype; send float32 or int64.")
    if tensor.WhichOneof("encoding") != "sparse_csr":
        return shaped(_view(tensor.dense, dtype, where), tensor.shape, where)
    csr = tensor.sparse_csr
    crow, col = (_view(data, _INT64, where) for data in (csr.crow_indices, csr.col_indices))
    values = _view(csr.values, dtype, where)
    return Csr(crow, col, tensor.shape).dense(values, where, cells)


def _decode_json_request(body: bytes, forward_only: bool) -> ForwardBackward:
    try:
        payload = from_json(body)
    except ValueError as error:
        raise UserError(f"The request is not valid JSON: {error}") from error
    payload = _expect(payload, dict, "the request")
    key = "forward_input" if "forward_input" in payload else "forward_backward_input"
    request = _expect(payload.get(key), dict, key)
    cells = CellBudget()
    data = [
        _decode_json_datum(i, _expect(datum, dict, f"data[{i}]"), cells)
        for i, datum in enumerate(_expect(request.get("data"), list, f"{key}.data"))
    ]
    config = _expect(request.get("loss_fn_config") or {}, dict, "loss_fn_config")
    if not all(isinstance(value, int | float | str) for value in config.values()):
        raise UserError("loss_fn_config must map names to numbers or strings.")
    return ForwardBackward(
        data, _expect(request.get("loss_fn"), str, f"{key}.loss_fn"), config, forward_only
    )


def _decode_json_datum(index: int, datum: Mapping[str, Any], cells: CellBudget) -> Datum:
    where = f"data[{index}].loss_fn_inputs"
    inputs = {
        name: _decode_json_tensor(tensor, f"{where}[{name!r}]", cells)
        for name, tensor in _expect(datum.get("loss_fn_inputs") or {}, dict, where).items()
    }
    return Datum(_decode_model_input(datum, "model_input", f"data[{index}]"), inputs)


def decode_reverse_kl(data: list[Any]) -> list[DistillDatum]:
    """Decode the datums of a ``forward_backward_reverse_kl`` request."""
    cells = CellBudget()
    return [_decode_distill_datum(f"data[{i}]", datum, cells) for i, datum in enumerate(data)]


def _decode_distill_datum(where: str, datum: Any, cells: CellBudget) -> DistillDatum:
    datum = _expect(datum, dict, where)
    student = _decode_model_input(datum, "student_input", where)
    reference = _decode_model_input(datum, "reference_input", where)
    targets = _decode_json_tensor(datum.get("target_tokens"), f"{where}.target_tokens", cells)
    weights = _decode_json_tensor(datum.get("weights"), f"{where}.weights", cells)
    if targets.dtype != np.int64 or targets.ndim != 1:
        raise UserError(f"{where}.target_tokens must be a flat int64 tensor.")
    return DistillDatum(student, reference, targets, weights.astype(np.float32))


def decode_targets(tensor: Mapping[str, Any], prompt_length: int) -> IntArray:
    """Decode ``target_prompt_logprobs``: [N - 1, K] token ids, -1 in cells that are not listed."""
    where = "target_prompt_logprobs"
    targets = _decode_json_tensor(tensor, where, CellBudget(MAX_TARGET_CELLS), fill=-1)
    if targets.dtype != np.int64 or targets.ndim != 2 or len(targets) != prompt_length - 1:
        raise UserError(
            f"{where} must be an int64 tensor of shape [{prompt_length - 1}, K], one row for each "
            f"prompt token but the first, not {targets.dtype.name} {list(targets.shape)}."
        )
    return targets


def _decode_model_input(datum: Mapping[str, Any], name: str, where: str) -> IntArray:
    model_input = _expect(datum.get(name), dict, f"{where}.{name}")
    return decode_chunks(model_input.get("chunks"), f"{where}.{name}")


def decode_chunks(chunks: Any, where: str, limit: float = math.inf) -> IntArray:
    """Return the token ids of a JSON ``ModelInput``, with its text chunks joined.

    More than ``limit`` tokens are refused before they are converted.
    """
    pieces = []
    for chunk in _expect(chunks, list, f"{where}.chunks"):
        chunk = _expect(chunk, dict, f"{where}.chunks[]")
        kind = chunk.get("type", "encoded_text")
        if kind != "encoded_text":
            raise _unsupported_chunk(where, kind)
        tokens = _expect(chunk.get("tokens"), list, f"{where}.tokens")
        limit -= len(tokens)
        if limit < 0:
            raise UserError(f"{where} has more tokens than a request may have. Shorten it.")
        pieces.append(_numbers(tokens, _INT64, f"{where}.tokens"))
    return _concatenate(pieces)


def _decode_json_tensor(tensor: Any, where: str, cells: CellBudget, fill: int = 0) -> NDArray[Any]:
    tensor = _expect(tensor, dict, where)
    dtype = _NUMPY_OF_JSON.get(str(tensor.get("dtype")))
    if dtype is None:
        raise UserError(f"{where}.dtype must be float32 or int64, not {tensor.get('dtype')!r}.")
    values = _numbers(tensor.get("data"), dtype, f"{where}.data")
    rows = decode_csr(tensor, where)
    if rows is None:
        return shaped(values, _shape(tensor, where), where)
    return rows.dense(values, where, cells, fill)


def decode_csr(tensor: Mapping[str, Any], where: str) -> Csr | None:
    """Return the cells that a sparse JSON tensor lists; None for a dense one."""
    if tensor.get("sparse_crow_indices") is None:
        return None
    return Csr(
        _numbers(tensor["sparse_crow_indices"], _INT64, f"{where}.sparse_crow_indices"),
        _numbers(tensor.get("sparse_col_indices"), _INT64, f"{where}.sparse_col_indices"),
        _shape(tensor, where),
    )


def _shape(tensor: Mapping[str, Any], where: str) -> list[int]:
    return list(_numbers(tensor.get("shape") or [], _INT64, f"{where}.shape"))


def _view(data: bytes, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise UserError(f"{where} has {len(data)} bytes, not a multiple of {dtype.itemsize}.")
    return np.frombuffer(data, dtype)


def _numbers(values: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    values = _expect(values, list, where)
    kinds = int if dtype.kind == "i" else int | float
    if any(isinstance(v, bool) or not isinstance(v, kinds) for v in values):
        raise UserError(f"{where} must be a flat list of {dtype.name} numbers.")
    try:
        return np.array(values, dtype)
    except (OverflowError, ValueError) as error:
        raise UserError(f"{where} has a number that does not fit {dtype.name}.") from error


def _concatenate(pieces: Sequence[NDArray[Any]]) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *pieces]).astype(np.int64)


def _expect(value: Any, kind: type | Any, where: str) -> Any:
    if not isinstance(value, kind):
        raise UserError(f"{where} must be a {kind.__name__}, not {type(value).__name__}.")
    return value


def _unsupported_chunk(where: str, kind: str | None) -> UserError:
    return UserError(
        f"{where} has a chunk of type {kind or 'none'!r}. This service trains and samples text "
        "only; send encoded_text chunks."
    )


# ---- results -----------------------------------------------------------------------------------


def encode_forward_backward(result: ForwardBackwardResult) -> bytes:
    """Encode a ``ForwardBackwardOutput``: an ArrayRecord for datums of equal trailing shape."""
    message = wire.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=result.metrics)
    done = 0
    for trailing_shape, group in groupby(result.logprobs, key=lambda a: a.shape[1:]):
        arrays = list(group)
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(arrays))
        _fill(record.fields["logprobs"], trailing_shape, arrays)
        for name, more in (("elementwise_loss", result.losses), ("entropy", result.entropy)):
            if more:
                _fill(record.fields[name], trailing_shape, more[done : done + len(arrays)])
        done += len(arrays)
    return bytes(message.SerializeToString(deterministic=True))


def _fill(field: Any, trailing: Iterable[int], arrays: Iterable[NDArray[Any]]) -> None:
    encoded = [_pack(array, _FLOAT32) for array in arrays]
    offsets = np.cumsum([0, *map(len, encoded)], dtype="<i8")
    field.data, field.offsets = b"".join(encoded), offsets.tobytes()
    field.dtype = wire.DTYPE_FLOAT32
    field.trailing_shape.extend(trailing)


def encode_sample(result: SampleResult, targets: Csr | None = None) -> bytes:
    """Encode a ``SampleResponse``: tokens int32, logprobs float32, little-endian.

    ``targets`` are the cells that a sparse ``target_prompt_logprobs`` lists; others are left out.
    """
    message = wire.SampleResponse()
    for sequence in result.sequences:
        is_stop = sequence.stop_reason == "stop"
        added = message.sequences.add(
            stop_reason=wire.STOP_REASON_STOP if is_stop else wire.STOP_REASON_LENGTH,
            tokens=_pack(sequence.tokens, _INT32),
            logprobs=_pack(sequence.logprobs, _FLOAT32),
        )
        if sequence.topk_logprobs is not None:
            added.topk_sampled_logprobs.CopyFrom(_encode_topk(sequence.topk_logprobs))
    if result.prompt_logprobs is not None:
        message.prompt_logprobs = _pack(result.prompt_logprobs, _FLOAT32)
    if result.topk_prompt_logprobs is not None:
        message.topk_prompt_logprobs.CopyFrom(_encode_topk(result.topk_prompt_logprobs))
    if result.target_prompt_logprobs is not None:
        encoded = _encode_tensor(result.target_prompt_logprobs, wire.DTYPE_FLOAT32, targets)
        message.target_prompt_logprobs.CopyFrom(encoded)
    if (drawn := result.prompt_alt_tokens) is not None:
        field = message.prompt_alt_tokens
        field.tokens.CopyFrom(_encode_tensor(drawn.token_ids, wire.DTYPE_INT64))
        field.logprobs.CopyFrom(_encode_tensor(drawn.logprobs, wire.DTYPE_FLOAT32))
    return bytes(message.SerializeToString(deterministic=True))


def _encode_topk(topk: TopkLogprobs) -> Any:
    length, k = topk.token_ids.shape
    return wire.TopkLogprobs(
        token_ids=_pack(topk.token_ids, _INT32),
        logprobs=_pack(topk.logprobs, _FLOAT32),
        k=k,
        length=length,
    )


def _encode_tensor(values: NDArray[Any], dtype: int, csr: Csr | None = None) -> Any:
    tensor = wire.Tensor(dtype=dtype, shape=values.shape)
    if csr is None:
        tensor.dense = _pack(values, _NUMPY_OF_WIRE[dtype])
    else:
        tensor.sparse_csr.values = _pack(csr.pick_cells(values), _NUMPY_OF_WIRE[dtype])
        tensor.sparse_csr.crow_indices = _pack(csr.crow, _INT64)
        tensor.sparse_csr.col_indices = _pack(csr.col, _INT64)
    return tensor


def _pack(values: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return values.astype(dtype, copy=False).tobytes()
