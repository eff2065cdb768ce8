"""Malicious requests: refused early, cheaply and with a message."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import os
import sqlite3
import stat
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from mint.catalog import Catalog, ModelNotFound
from mint.service.access.auth import LOCAL_USER, create_key
from mint.service.admin.logs import _read_path
from mint.service.api.openai.requests import Message
from mint.service.checkpoints.archives import unpack
from mint.service.checkpoints.storage import DESCRIPTION, CheckpointPath, check_name
from mint.service.engines.pool import MAX_LOOK_UPS
from mint.service.errors import ApiError, UserError
from mint.service.files import shorten_logs
from mint.service.idleness import Idleness
from mint.service.store.database import RunRow, SamplerRow, SessionRow, Store, now
from mint.service.wire.bodies import MAX_FIELDS, Address, BadBody, read_address
from mint.service.wire.codec import decode_forward_backward, decode_targets
from mint.service.wire.decoding import LARGE, Decoder
from mint.service.wire.requests import MAX_PROMPT_TOKENS, Request, SampleBody
from tests.reliability.local import Local, with_service
from tests.reliability.test_isolation import PATH, fill
from tests.service.samples import batch, json_datum

FOREIGN = {"X-API-Key": "tml-guess"}


# ---- bodies --------------------------------------------------------------------------------------


class Unread:
    """A body that notices when it is read."""

    def __init__(self) -> None:
        self.was_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.was_read = True
        yield b"[" * 100


@pytest.mark.parametrize(
    "path",
    ["/api/v1/forward_backward", "/api/v1/asample", "/api/v1/create_session", "/v1/completions"],
)
def test_the_key_is_checked_before_the_body_is_read(tmp_path: Path, path: str) -> None:
    async def work(local: Local) -> tuple[int, bool]:
        create_key(local.service.store, "laptop", "ada")
        body = Unread()
        answer = await local.http.post(path, content=body, headers=FOREIGN)
        return answer.status_code, body.was_read

    assert with_service(tmp_path, work) == (401, False)


def test_a_small_body_that_opens_to_a_huge_one_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    assert len(bomb) < 10_000

    async def work() -> None:
        decoder = Decoder(max_body_bytes=1 << 30, budget=12 << 20)
        with pytest.raises(BadBody, match="unpacks to more than 1048576 bytes"):
            await opened(decoder, bomb, "zstd", is_protobuf=False)
        with pytest.raises(ApiError, match="more than"):
            await opened(decoder, bytes(2 << 20), None, is_protobuf=False)

    asyncio.run(work())


async def opened(decoder: Decoder, body: bytes, encoding: str | None, is_protobuf: bool) -> bytes:
    with decoder.holding() as grow:
        return await decoder.open(body, encoding, is_protobuf, grow)


def test_opened_bodies_share_a_budget_while_they_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request holds its body until its operation is in the journal; others then get 429."""
    monkeypatch.setattr("mint.service.wire.decoding.machine_budget", lambda: 16 << 20)
    body = zstandard.ZstdCompressor().compress(bytes(4 << 20))
    headers = {"content-type": "application/x-protobuf", "content-encoding": "zstd"}

    async def work(local: Local) -> list[int]:
        decoder, statuses = local.service.decoder, []

        async def post() -> None:
            answer = await local.post("/forward_backward", content=body, headers=headers)
            statuses.append(answer.status_code)

        await post()
        with ExitStack() as held:
            for _ in range(4):
                await decoder.open(body, "zstd", True, held.enter_context(decoder.holding()))
            await post()
        await post()
        return statuses

    assert with_service(tmp_path, work) == [400, 429, 400]


def test_a_released_body_is_no_longer_counted() -> None:
    """A cancelled request leaves its thread behind, which must not keep counting."""
    decoder = Decoder(max_body_bytes=1 << 30, budget=10)
    with decoder.holding() as grow:
        grow(10)
    with pytest.raises(ApiError, match="retry"):
        grow(1)
    with decoder.holding() as grow:
        grow(10)


METADATA = {
    "tags": {"tags": ["a" * 70_000]},
    "a name": {"display_name": "a" * 70_000},
    "user_metadata": {"user_metadata": {"a": "b" * 70_000}},
    "together": {"tags": ["a" * 40_000], "user_metadata": {"a": "b" * 40_000}},
    "many": {"user_metadata": {str(n): "" for n in range(20_000)}},
}


@pytest.mark.parametrize("fields", METADATA.values(), ids=METADATA)
def test_large_metadata_is_not_stored(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def work(local: Local) -> httpx.Response:
        return await local.post("/create_session", fields)

    answer = with_service(tmp_path, work)
    assert (answer.status_code, "65536" in answer.text) == (422, True), answer.text
    assert len(answer.content) < 1000


def test_large_metadata_of_a_run_is_refused_and_usual_metadata_is_not(tmp_path: Path) -> None:
    async def work(local: Local) -> list[int]:
        usual = {"tags": ["a"] * 100, "user_metadata": {"config": "x" * 50_000}}
        session = (await local.post("/create_session", usual)).json()["session_id"]
        body = {"session_id": session, "model_seq_id": 0, "base_model": "m"}
        metadata = {"user_metadata": {"a": "b" * 70_000}}
        created = await local.post("/create_model", {**body, **metadata})
        finished = await local.post(f"/sessions/{session}/finish", {"detail": "a" * 70_000})
        return [created.status_code, finished.status_code]

    assert with_service(tmp_path, work) == [422, 422]


class CountedBytes(bytes):
    """Counts how often a byte or a part is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


def test_millions_of_tiny_fields_are_not_all_read() -> None:
    """The address of a protobuf message is read on the event loop, a field at a time."""
    attack = CountedBytes(b"\x0a\x01a" + b"\x10\x01" * 4_000_000)
    with pytest.raises(UserError, match="more than 65536 fields"):
        read_address(attack, is_protobuf=True)
    assert attack.reads < 4 * MAX_FIELDS
    largest = CountedBytes(b"\x0a\x01a" + b"\x10\x01" * (MAX_FIELDS - 1))
    assert read_address(largest, is_protobuf=True) == Address("a", 1)


def test_a_message_of_too_many_fields_is_answered_with_400(tmp_path: Path) -> None:
    body = zstandard.ZstdCompressor().compress(b"\x0a\x01a" + b"\x10\x01" * 4_000_000)
    headers = {"content-type": "application/x-protobuf", "content-encoding": "zstd"}

    async def work(local: Local) -> httpx.Response:
        return await local.post("/forward_backward", content=body, headers=headers)

    answer = with_service(tmp_path, work)
    assert (answer.status_code, "fewer datums" in answer.text) == (400, True), answer.text


def test_large_json_is_parsed_in_another_process_and_means_the_same() -> None:
    datums = [json_datum() for _ in range(20_000)]
    body = json.dumps({"model_id": "a:train:0", "seq_id": 3, **batch(*datums)}).encode()
    assert len(body) > LARGE

    async def work() -> None:
        decoder = Decoder(max_body_bytes=1 << 30)
        try:
            address = await decoder.address(body, is_protobuf=False)
            assert address is not None
            assert (address.run_id, address.seq_id) == ("a:train:0", 3)
            [packed] = await decoder.forward_backward([body], [False], forward_only=False)
            assert len(packed.unpack().data) == len(datums)
            with pytest.raises(UserError, match="not valid JSON"):
                await decoder.forward_backward([body[:-1]], [False], forward_only=False)
        finally:
            decoder.close()

    asyncio.run(work())


def test_a_few_bytes_cannot_name_a_huge_matrix() -> None:
    targets = {
        "data": [1],
        "dtype": "int64",
        "shape": [4, 1 << 23],
        "sparse_crow_indices": [0, 1, 1, 1, 1],
        "sparse_col_indices": [0],
    }
    datum = {**json_datum(), "loss_fn_inputs": {"target_tokens": targets}}
    with pytest.raises(UserError, match="too large as a dense tensor"):
        decode_forward_backward(json.dumps(batch(datum)).encode(), False, False)


SHAPES = {
    "no rows, and more columns than there are addresses": ([], [0, 1 << 62], [0], []),
    "as many columns, dense": ([], [0, 1 << 62], None, None),
    "more dimensions than numpy has": ([1], [1] * 100, None, None),
    "a negative size": ([1, 2], [-1], None, None),
    "negative sizes, sparse": ([1], [-1, -1], [0, 1], [0]),
    "a negative column": ([1], [1, 4], [0, 1], [-1]),
    "rows that go back": ([1], [2, 4], [0, -1, 1], [0]),
    "no row indices": ([1], [1, 4], [], [0]),
}


@pytest.mark.parametrize("attack", SHAPES)
def test_an_impossible_shape_is_refused(attack: str) -> None:
    data, shape, crow, col = SHAPES[attack]
    tensor = {"data": data, "dtype": "int64", "shape": shape}
    if crow is not None:
        tensor |= {"sparse_crow_indices": crow, "sparse_col_indices": col}
    datum = {**json_datum(), "loss_fn_inputs": {"target_tokens": tensor}}
    with pytest.raises(UserError, match="target_tokens"):
        decode_forward_backward(json.dumps(batch(datum)).encode(), False, False)
    with pytest.raises(UserError, match="target_prompt_logprobs"):
        decode_targets(tensor, 4)


def test_many_prompts_times_many_samples_are_refused(tmp_path: Path) -> None:
    async def work(local: Local) -> httpx.Response:
        body = {"model": "tiny", "prompt": ["a"] * 2000, "n": 128}
        return await local.http.post("/v1/completions", json=body)

    answer = with_service(tmp_path, work)
    assert answer.status_code == 400
    assert "send fewer at once" in answer.json()["error"]["message"]


def models(base: type[Request]) -> Iterator[type[Request]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def lists(schema: Any) -> Iterator[dict[str, Any]]:
    """Every list in a schema of pydantic whose items can be wrong."""
    if isinstance(schema, dict):
        if schema.get("type") == "list" and schema["items_schema"]["type"] != "any":
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from lists(part)


def test_no_request_reports_millions_of_wrong_items() -> None:
    """15 MB of them kept the service busy for more than a minute."""
    found = {model: list(lists(model.__pydantic_core_schema__)) for model in models(Request)}
    assert sum(map(len, found.values())) > 10
    slow = {
        model.__name__
        for model, all_lists in found.items()
        for each in all_lists
        if not each.get("fail_fast")
    }
    assert not slow, "declare them with Many[...]"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/create_session", {"tags": [[]] * 10_000}),
        ("/api/v1/asample", {"prompt": {"chunks": [1] * 10_000}}),
        ("/v1/completions", {"model": "m", "prompt": [{}] * 10_000}),
        ("/v1/completions", {"model": "m", "prompt": [["x"] * 10_000]}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(n): "x" for n in range(10_000)}}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(n): 101 for n in range(10_000)}}),
        ("/v1/chat/completions", {"model": "m", "messages": [{}] * 10_000}),
    ],
)
def test_of_many_wrong_items_only_the_first_is_reported(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async def work(local: Local) -> httpx.Response:
        return await local.http.post(path, json=body)

    answer = with_service(tmp_path, work)
    assert answer.status_code in (400, 422)
    assert len(answer.text) < 2000


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": "\\ud800"}'])
def test_arguments_of_a_tool_that_are_no_json_stay_a_string(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    message = Message(role="assistant", tool_calls=[call])
    assert message.for_template()["tool_calls"] == [call]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x " * 5_000_000},
        {"prompt": ["x " * 250_000] * 20},
        {"messages": [{"role": "user", "content": "x " * 5_000_000}]},
    ],
)
def test_ten_megabytes_of_text_are_refused(
    tmp_path: Path, tiny_model: Path, body: dict[str, Any]
) -> None:
    async def work(local: Local) -> httpx.Response:
        route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return await local.http.post(route, json={"model": "tiny", **body})

    answer = with_service(tmp_path, work, aliases={"tiny": tiny_model})
    assert answer.status_code == 400
    assert "at most 1000000 at once" in answer.json()["error"]["message"]


def test_a_prompt_of_millions_of_tokens_is_refused_before_it_is_converted() -> None:
    chunks = [{"tokens": [1] * MAX_PROMPT_TOKENS}, {"tokens": ["not", "converted"]}]
    body = SampleBody(prompt={"chunks": chunks}, sampling_params={}, sampling_session_id="s")
    with pytest.raises(UserError, match="more tokens than a request may have"):
        body.to_engine()


# ---- archives ------------------------------------------------------------------------------------


def archive(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    packed = io.BytesIO()
    for info, content in members:
        info.size = info.size or len(content)
        packed.write(info.tobuf(tarfile.GNU_FORMAT) + content)
        packed.write(b"\0" * (-len(content) % 512))
    packed.write(b"\0" * 1024)
    file = folder / "archive"
    file.write_bytes(gzip.compress(packed.getvalue()))
    return file


def test_a_small_archive_cannot_become_a_large_adapter(tmp_path: Path) -> None:
    zeros = bytes(48 << 20)
    file = archive(tmp_path, (tarfile.TarInfo("adapter_model.safetensors"), zeros))
    assert file.stat().st_size < 1 << 20
    (tmp_path / "unpacked").mkdir()
    with pytest.raises(UserError, match="unpacks to more than"):
        unpack(file, tmp_path / "unpacked", limit=1 << 40)
    assert not list((tmp_path / "unpacked").iterdir())


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_header_cannot_fill_the_memory(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("long")
    info.type = kind
    info.size = 1 << 33  # read at once, if it were believed
    (tmp_path / "unpacked").mkdir()
    with pytest.raises(UserError, match="header has 8589934592 bytes"):
        unpack(archive(tmp_path, (info, b"x" * 512)), tmp_path / "unpacked", limit=1 << 40)


def pax(content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("pax")
    info.type = tarfile.XHDTYPE
    return info, content


def old_sparse() -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("sparse")
    info.type = tarfile.GNUTYPE_SPARSE
    return info, b"0\n" * (1 << 20)


PLAIN = (tarfile.TarInfo("file"), b"1000000\n" + b"0\n" * (1 << 20))
EMPTY = (tarfile.TarInfo("empty"), b"")
MAP = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
HEADERS = {
    "a map of a sparse file": ([pax(MAP), PLAIN], "sparse"),
    "a map of the first format": ([pax(b"26 GNU.sparse.map=1,2,3,4\n"), PLAIN], "sparse"),
    "a map that is none": ([pax(b"20 GNU.sparse.map=x\n"), PLAIN], "sparse"),
    "the oldest map": ([old_sparse()], "sparse"),
    "a chain of headers": ([pax(b"6 a=b\n")] * 3000 + [PLAIN], "recursion|too many"),
    "a long chain of large headers": (
        [pax(b"8000 a=" + b"1" * 7992 + b"\n"), EMPTY] * 200,
        "too many",
    ),
    "digits that take quadratic time": ([pax(b"1" * 60_000), PLAIN], "60000 bytes"),
    "a length of many digits": ([pax(b"1" * 5000 + b" a=b\n"), PLAIN], "4300|invalid header"),
    "an unknown charset": ([pax(b"20 hdrcharset=\xff\xfe\xfd\n"), PLAIN], "codec|invalid header"),
}
"""Members of an archive, and what the refusal names. Newer versions of Python check more."""


@pytest.mark.parametrize("attack", HEADERS)
def test_headers_that_tarfile_would_believe_are_refused(tmp_path: Path, attack: str) -> None:
    members, named = HEADERS[attack]
    (tmp_path / "unpacked").mkdir()
    with pytest.raises(UserError, match=rf"not a complete \.tar\.gz archive: .*({named})"):
        unpack(archive(tmp_path, *members), tmp_path / "unpacked", limit=1 << 40)
    assert not list((tmp_path / "unpacked").iterdir())


# ---- web pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://["},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_web_page_cannot_drive_a_loopback_service(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async def work(local: Local) -> list[httpx.Response]:
        form = {"file": ("archive", b"x")}
        return [
            await local.post("/create_session", {"tags": []}, headers=headers),
            await local.http.get("/healthz", headers=headers),
            await local.http.post("/api/v1/checkpoints/upload", files=form, headers=headers),
        ]

    for answer in with_service(tmp_path, work):
        assert answer.status_code == 403, answer.text
        assert "allowed_hosts" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:5", "gpu"])
def test_this_machine_and_allowed_names_are_served(tmp_path: Path, host: str) -> None:
    async def work(local: Local) -> str:
        own = {"Host": host, "Origin": f"http://{host}"}
        return await local.session(headers=own)

    assert with_service(tmp_path, work, allowed_hosts=("gpu",))


@pytest.mark.parametrize("host", ["[", "[::1", "gpu/x", "gpu?x", "gpu#x"])
@pytest.mark.parametrize("serves", ["127.0.0.1", "0.0.0.0"])
def test_an_invalid_host_is_refused(tmp_path: Path, serves: str, host: str) -> None:
    async def work(local: Local) -> list[int]:
        key = create_key(local.service.store, "laptop", "ada")
        headers = {"Host": host, "X-API-Key": key}
        own = {**headers, "Origin": f"http://{host}"}
        return [
            (await local.post("/optim_step", {}, headers=headers)).status_code,
            (await local.post("/create_session", {}, headers=own)).status_code,
        ]

    assert with_service(tmp_path, work, host=serves) == [403, 403]


def test_beyond_loopback_any_name_is_served(tmp_path: Path) -> None:
    async def work(local: Local) -> str:
        key = create_key(local.service.store, "laptop", "ada")
        return await local.session(headers={"Host": "gpu.example", "X-API-Key": key})

    assert with_service(tmp_path, work, host="0.0.0.0")


# ---- keys, names, clocks -------------------------------------------------------------------------


def test_revoking_the_last_key_does_not_open_the_service(tmp_path: Path) -> None:
    async def work(local: Local) -> tuple[int, int]:
        key = create_key(local.service.store, "laptop", "ada")
        local.service.store.revoke_key("laptop")
        first = await local.post("/create_session", {}, headers={"X-API-Key": key})
        return first.status_code, (await local.post("/create_session", {})).status_code

    assert with_service(tmp_path, work) == (401, 401)


@pytest.mark.parametrize("name", [".draft-x", ".hidden", ".draft-" + "0" * 32])
def test_no_checkpoint_has_the_name_of_a_draft(name: str) -> None:
    with pytest.raises(UserError, match="no dot at the start"):
        check_name(name)


@pytest.mark.parametrize("name", ["~nouser/x", "~nouser", "x" * 5000, "a\0b", "\ud800"])
def test_an_unusual_model_name_is_a_clear_error(tmp_path: Path, name: str) -> None:
    async def work(local: Local) -> httpx.Response:
        body = {"session_id": await local.session(), "sampling_session_seq_id": 0}
        content = json.dumps({**body, "base_model": name})
        return await local.post("/create_sampling_session", content=content)

    answer = with_service(tmp_path, work)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["detail"]


def test_a_full_disk_says_so_when_a_session_is_made(tmp_path: Path) -> None:
    async def work(local: Local) -> httpx.Response:
        with local.service.store._engine.connect() as connection:
            connection.exec_driver_sql("pragma max_page_count=1")
        pages = local.service.store._engine.pool
        assert pages is not None
        huge = {"tags": ["x" * 60_000], "user_metadata": {}}
        return await local.post("/create_session", huge)

    answer = with_service(tmp_path, work)
    assert answer.status_code == 503
    assert "full" in answer.json()["detail"]


def test_a_clock_that_jumps_deletes_nothing(tmp_path: Path) -> None:
    """Idle time is the time in which a service ran, across restarts."""
    now = [100.0]
    idle = Idleness(tmp_path / "idle.json", lambda: now[0])
    assert idle.seconds("run a", "same") == 0
    now[0] += 50
    idle.save(at_once=True)
    now[0] += 8 * 86400  # the machine was off, or its clock was set
    idle = Idleness(tmp_path / "idle.json", lambda: now[0])
    assert idle.seconds("run a", "same") == 50
    now[0] += 10
    assert idle.seconds("run a", "same") == 60
    assert idle.seconds("run a", "changed") == 0
    (tmp_path / "idle.json").write_text("{")
    assert Idleness(tmp_path / "idle.json", lambda: 1.0).seconds("run a", "same") == 0


def test_old_files_are_kept_by_a_service_that_just_started(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a_train_0"
    folder.mkdir(parents=True)
    (folder / "journal").touch()
    for path in (folder / "journal", folder):
        os.utime(path, (0, 0))

    async def work(local: Local) -> bool:
        await local.service.tidy()
        return folder.exists()

    assert with_service(tmp_path, work)


def test_a_stray_file_among_the_runs_does_not_stop_housekeeping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("of the administrator")

    async def work(local: Local) -> None:
        await local.service.tidy()

    with_service(tmp_path, work)
    assert "housekeeping failed" not in caplog.text


def test_a_step_of_housekeeping_that_fails_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here sessions cannot be read; a log is shortened in a later step."""
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "engine.log"
    with open(log, "wb") as file:
        file.truncate(65 * 1024**2)

    async def work(local: Local) -> None:
        with local.service.store._engine.connect() as connection:
            connection.exec_driver_sql("drop table sessions")
        await local.service.tidy()

    with_service(tmp_path, work)
    assert "housekeeping failed" in caplog.text
    assert log.stat().st_size == 1024**2


def test_silent_sessions_are_released_after_a_while_and_not_because_of_a_clock(
    tmp_path: Path,
) -> None:
    """They must have been due for ``expired_kept_s`` of the time in which a service ran."""

    async def work(local: Local) -> list[int]:
        service = local.service
        session = await local.session()
        service.store.touch(SessionRow, {session: now() - timedelta(days=8)})
        seconds = [0.0]
        service.idleness = Idleness(tmp_path / "idle.json", lambda: seconds[0])
        left = []
        for seconds[0] in (0.0, 3599.0, 3600.0):
            service._delete_silent_sessions()
            left.append(service.store.page(SessionRow, LOCAL_USER, 10, 0)[1])
        return left

    assert with_service(tmp_path, work) == [1, 1, 0]


def test_samplers_of_a_silent_session_go_when_the_state_of_its_runs_is_gone(tmp_path: Path) -> None:
    """The session stays, as its runs have checkpoints."""

    async def work(local: Local) -> list[tuple[int, int]]:
        service, store = local.service, local.service.store
        session = await local.session()
        store.touch(SessionRow, {session: now() - timedelta(days=8)})
        run = RunRow(
            id=f"{session}:train:0", session_id=session, user=LOCAL_USER, base_model="m", lora={}
        )
        store.add(run)
        for number in range(2):
            sampler = SamplerRow(
                id=f"{session}:sample:{number}", session_id=session, base_model="m"
            )
            sampler.user, sampler.run_id = LOCAL_USER, run.id if number else None
            store.add(sampler)
        state = tmp_path / "runs" / f"{session}_train_0"
        state.mkdir(parents=True)
        seconds = [0.0]
        service.idleness = Idleness(tmp_path / "idle.json", lambda: seconds[0])
        left = []
        for seconds[0] in (0.0, 3600.0, 7200.0, 10800.0):
            service._delete_silent_sessions()
            tables = (SamplerRow, SessionRow)
            left.append(tuple(store.page(table, LOCAL_USER, 10, 0)[1] for table in tables))
            if seconds[0] == 3600.0:
                state.rmdir()
        return left  # type: ignore[return-value]

    assert with_service(tmp_path, work) == [(2, 1), (2, 1), (2, 1), (0, 1)]


def test_a_log_that_has_grown_keeps_its_end_and_is_written_on(tmp_path: Path) -> None:
    with open(tmp_path / "engine.log", "ab", buffering=0) as log:
        log.write(b"first\n" * 1000)
        shorten_logs(tmp_path, limit=5000, kept=12)
        log.write(b"last\n")
    assert (tmp_path / "engine.log").read_bytes() == b"first\nfirst\nlast\n"


def test_the_files_of_a_service_are_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Store(f"sqlite:///{home / 'mint.db'}", home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_signed_link_does_not_reach_the_log() -> None:
    for path in (b"/api/v1/mint/downloads/SECRET.SIGN/x.tar.gz", b"/api/v1/mint/downloads/SECRET"):
        assert "SECRET" not in _read_path({"raw_path": path})


def test_bodies_do_not_reach_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(local: Local) -> None:
        for path in ("/create_session", "/asample", "/create_model", "/optim_step"):
            await local.post(
                path, {"tags": "PRIVATE", "prompt": "PRIVATE", "base_model": ["PRIVATE"]}
            )

    with caplog.at_level(logging.DEBUG):
        with_service(tmp_path, work)
    assert "PRIVATE" not in caplog.text


# ---- look-ups ------------------------------------------------------------------------------------


def test_model_lookups_delay_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub does not answer: hundreds of unknown names wait, and sessions are made meanwhile."""
    answers = threading.Event()

    def never(self: Catalog, name: str) -> Path:
        answers.wait(60)
        raise ModelNotFound(f"no {name}")

    monkeypatch.setattr(Catalog, "locate", never)

    async def work(local: Local) -> list[int]:
        session = await local.session()
        body = {"session_id": session, "sampling_session_seq_id": 0}
        asked = [
            asyncio.create_task(
                local.post("/create_sampling_session", {**body, "base_model": f"a/{n}"})
            )
            for n in range(300)
        ]
        while len(local.service.engines._looking_up) < MAX_LOOK_UPS:
            await asyncio.sleep(0)
        for _ in range(5):
            await local.session()
        assert len(local.service.engines._looking_up) == MAX_LOOK_UPS
        answers.set()
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    codes = with_service(tmp_path, work)
    assert set(codes) == {400, 429}
    assert codes.count(429) == 300 - MAX_LOOK_UPS


def test_a_heartbeat_does_not_wait_for_the_services_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are busy, with slow disks or large checkpoints, and the keys are read again."""
    monkeypatch.setattr("mint.service.access.auth._RELOAD_KEYS_S", -1.0)
    is_over = threading.Event()

    async def work(local: Local) -> None:
        session = await local.session()
        busy = [asyncio.create_task(asyncio.to_thread(is_over.wait, 60)) for _ in range(100)]
        try:
            body = {"session_id": session}
            beats = [local.post("/session_heartbeat", body) for _ in range(50)]
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*beats)
            assert {answer.status_code for answer in answers} == {200}
        finally:
            is_over.set()
            await asyncio.gather(*busy)

    with_service(tmp_path, work)


def test_copies_of_checkpoints_do_not_take_all_of_the_services_threads(tmp_path: Path) -> None:
    """Each reads a file that does not come, as of a disk that hangs."""

    async def work(local: Local) -> None:
        headers = fill(local)
        store, path = local.service.store, CheckpointPath.parse(PATH)
        row = local.service.checkpoints.find(path, "ada")
        assert row is not None
        store.change_checkpoint(row, public=True)
        file = local.service.checkpoints.folder(path) / DESCRIPTION
        pipe, kept = tmp_path / "pipe", tmp_path / "kept"
        os.mkfifo(pipe)
        file.rename(kept)
        os.link(pipe, file)
        body = {"source_path": PATH, "destination_project_id": "p"}
        copies = [
            asyncio.create_task(local.post("/copy_weights", body, headers=headers))
            for _ in range(100)
        ]
        try:
            async with asyncio.timeout(30):
                for _ in range(20):
                    await local.session(headers=headers)
        finally:
            kept.replace(file)
            os.close(os.open(pipe, os.O_RDWR))
            answers = await asyncio.gather(*copies)
        assert {answer.status_code for answer in answers} == {200, 400}

    with_service(tmp_path, work)


def test_no_operation_is_accepted_while_a_run_that_did_not_load_is_deleted(tmp_path: Path) -> None:
    """It would be acknowledged, and deleted with the run."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")

    async def work(local: Local) -> None:
        runs = local.service.runs
        body = {"session_id": await local.session(), "model_seq_id": 0, "base_model": "broken"}
        created = await local.post("/create_model", {**body, "lora_config": {"rank": 4}})
        run = created.json()["request_id"].rpartition(":")[0]
        with closing(sqlite3.connect(tmp_path / "mint.db", isolation_level=None)) as other:
            other.execute("begin immediate")  # the row is not deleted before this ends
            while run in runs._runs:
                await asyncio.sleep(0)
            step = asyncio.create_task(local.post("/optim_step", {"model_id": run, "seq_id": 1}))
            while not (step.done() or run in runs._releasing):
                await asyncio.sleep(0)
            other.execute("rollback")
        answer = await step
        assert answer.status_code == 404, answer.text

    with_service(tmp_path, work, aliases={"broken": tmp_path / "broken"})
