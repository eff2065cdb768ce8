"""Checkpoints that leave as files and come back: links, archives, uploads, mixtures."""

from __future__ import annotations

import io
import json
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from safetensors.numpy import save
from tinker import types

from mint.service.checkpoints.storage import CheckpointPath
from mint.service.engines.process import EngineProcess
from mint.service.sampling.session import SamplingSession
from tests.reliability.local import Local
from tests.service.checkpoints.test_retention import result
from tests.service.samples import datum, prompt
from tests.service.sampling.test_release import overwrite_while_read, save_other, with_sampler
from tests.service_fixture import MODEL, LiveService, RawClient

STEP = types.AdamParams(learning_rate=1e-2)


@pytest.fixture(scope="module")
def client(live_service: LiveService) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=live_service.base_url, api_key="tml-test")


@pytest.fixture(scope="module")
def rest(live_service: LiveService) -> tinker.RestClient:
    return tinker.RestClient(base_url=live_service.base_url, api_key="tml-test")


@pytest.fixture
def training(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(base_model=MODEL, rank=4)


def train(training: tinker.TrainingClient, *seeds: int) -> list[float]:
    losses = []
    for seed in seeds:
        loss = training.forward_backward([datum(seed)], "cross_entropy")
        training.optim_step(STEP).result()
        losses.append(loss.result().metrics["loss:sum"])
    return losses


def archive_of(raw: RawClient, path: str) -> bytes:
    run, kind, name = path.removeprefix("tinker://").split("/")
    answer = raw.http.get(f"/training_runs/{run}/checkpoints/{kind}/{name}/archive")
    assert answer.status_code == 302
    assert "GMT" in answer.headers["expires"]
    return httpx.get(answer.headers["location"]).content


def upload(raw: RawClient, archive: bytes, **fields: str) -> httpx.Response:
    files = {"file": ("archive.tar.gz", archive, "application/gzip")}
    return raw.http.post("/checkpoints/upload", files=files, data=fields)


def scores(client: tinker.ServiceClient, path: str) -> Any:
    scored = client.create_sampling_client(model_path=path).compute_logprobs(prompt()).result()
    return np.array(scored[1:], float)


# ---- links ---------------------------------------------------------------------------------------


def test_exported_weights_are_fetched_file_by_file_without_a_key(
    training: tinker.TrainingClient, rest: tinker.RestClient
) -> None:
    exported = training.save_weights_external("for-peft", ttl_seconds=7200).result()
    assert exported.path.endswith("/external_weights/for-peft")
    links = rest.get_external_weights_urls(exported.path).result()
    config = json.loads(httpx.get(links.urls["adapter_config.json"]).content)
    assert (config["r"], config["lora_alpha"]) == (4, 32)
    with urllib.request.urlopen(links.urls["adapter_model.safetensors"]) as file:
        assert int(file.headers["content-length"]) == len(file.read())
    [listed] = rest.list_checkpoints(training.model_id).result().checkpoints
    assert listed.checkpoint_type == "external"


def test_a_link_ends_with_its_checkpoint(training: tinker.TrainingClient, raw: RawClient) -> None:
    path = training.save_state("again").result().path
    run = training.model_id
    where = f"/training_runs/{run}/checkpoints/weights/again"
    link = raw.http.get(f"{where}/archive").headers["location"]
    assert httpx.get(link).status_code == 200
    training.save_state("again", overwrite=True).result()
    assert httpx.get(link).status_code == 404
    assert httpx.get(link.replace("downloads/", "downloads/x")).status_code == 403
    assert archive_of(raw, path)
    link = raw.http.get(f"{where}/archive").headers["location"]
    raw.http.delete(where)
    assert httpx.get(link).status_code == 404


# ---- uploads -------------------------------------------------------------------------------------


def test_a_checkpoint_of_one_service_resumes_on_another_with_its_optimizer(
    training: tinker.TrainingClient, raw: RawClient, other_service: LiveService
) -> None:
    train(training, 0, 1)
    archive = archive_of(
        raw, training.save_state("halfway", user_metadata={"a": "b"}).result().path
    )
    expected = train(training, 2, 3)
    answer = upload(RawClient(other_service.base_url), archive).json()
    assert answer["checkpoint_id"] == answer["path"]
    assert answer["path"].endswith("/weights/halfway")
    assert answer["user_metadata"] == {"a": "b"}
    there = tinker.ServiceClient(base_url=other_service.base_url, api_key="tml-test")
    resumed = there.create_training_client_from_state_with_optimizer(answer["path"])
    assert train(resumed, 2, 3) == expected
    assert not list((other_service.home / "uploads").iterdir())


def test_an_uploaded_sampler_gives_weights_only(
    client: tinker.ServiceClient, training: tinker.TrainingClient, raw: RawClient
) -> None:
    train(training, 0)
    path = training.save_weights_for_sampler("policy").result().path
    uploaded = upload(raw, archive_of(raw, path), name="renamed").json()["path"]
    assert uploaded.endswith("/sampler_weights/renamed")
    np.testing.assert_array_equal(scores(client, uploaded), scores(client, path))
    run = raw.run()
    refused = raw.result(raw.operate("load_weights", run, 1, path=uploaded, optimizer=True))
    assert "without optimizer state" in refused["error"]
    assert raw.result(raw.operate("load_weights", run, 2, path=uploaded, optimizer=False))["path"]


def changed(archive: bytes, **files: bytes | None) -> bytes:
    """The archive with files replaced or (None) left out."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=packed, mode="w:gz") as new,
    ):
        for info in old:
            content = old.extractfile(info)
            data = files.get(info.name.partition(".")[0], content.read() if content else b"")
            if data is not None:
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def test_an_archive_that_is_wrong_is_refused(
    training: tinker.TrainingClient, raw: RawClient
) -> None:
    archive = archive_of(raw, training.save_state("good").result().path)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 32, "base_model_name_or_path": "no/such"}
    wrong_base = json.dumps(config).encode()
    for content, named in (
        (b"junk", ".tar.gz"),
        (changed(archive, adapter_config=None), "adapter_config.json"),
        (changed(archive, adapter_config=b"{}"), "peft_type"),
        (changed(archive, adapter_model=b"x" * 100), "adapter_model.safetensors"),
        (changed(archive, optimizer=None), "optimizer.safetensors"),
        (changed(archive, optimizer=b""), "optimizer.safetensors"),
        (changed(archive, checkpoint=b"[]"), "checkpoint.json"),
        (changed(archive, checkpoint=None, adapter_config=wrong_base), "no/such"),
    ):
        answer = upload(raw, content)
        assert answer.status_code == 400, named
        assert named in answer.json()["detail"]
    assert "valid checkpoint name" in upload(raw, archive, name="../x").json()["detail"]
    assert "no/model" in upload(raw, archive, base_model="no/model").json()["detail"]


ATTENTION = "model.layers.0.self_attn.q_proj"
MISFITS = {
    "a layer of another size": ({ATTENTION: 100_000}, f"32 x 100000, and {MODEL} has 32 x 32"),
    "a huge layer that it lacks": ({"no.such": 100_000}, "has no weight with more than 272"),
    "too many layers": ({f"layers.{n}": 32 for n in range(500)}, "has 500 layers"),
}


@pytest.mark.parametrize("attack", MISFITS)
def test_an_adapter_that_fits_no_layer_is_refused_before_its_tensors_are_read(
    raw: RawClient, live_service: LiveService, attack: str
) -> None:
    """They contain NaN, which whoever reads them reports."""
    layers, named = MISFITS[attack]
    tensors = {}
    for layer, inputs in layers.items():
        tensors[f"base_model.model.{layer}.lora_A.weight"] = np.full((1, inputs), np.nan, "f4")
        tensors[f"base_model.model.{layer}.lora_B.weight"] = np.zeros((32, 1), "f4")
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": MODEL}
    files = {"adapter_config.json": json.dumps(config).encode()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in {**files, "adapter_model.safetensors": save(tensors)}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    answer = upload(raw, packed.getvalue())
    assert answer.status_code == 400
    assert named in answer.json()["detail"]
    assert not list((live_service.home / "uploads").iterdir())


def test_a_form_that_is_wrong_is_refused(raw: RawClient) -> None:
    for options, named in (
        ({"json": {}}, "multipart/form-data"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, "'file'"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}}, "form"),
        ({"files": {"other": b"x"}}, "'file'"),
        ({"files": [("file", b"x"), ("file", b"y")]}, "two files"),
        ({"files": {"file": b"x"}, "data": {"name": "n" * 5000}}, "name"),
    ):
        answer = raw.http.post("/checkpoints/upload", **options)  # type: ignore[arg-type]
        assert answer.status_code == 400, (named, answer.text)
        assert named in answer.json()["detail"]


def test_an_upload_has_a_largest_size(other_service: LiveService) -> None:
    answer = upload(RawClient(other_service.base_url), b"x" * 6_000_000)
    assert answer.status_code in (400, 413)
    assert "5000000 bytes" in answer.json()["detail"]
    assert not list((other_service.home / "uploads").glob("*/*"))


# ---- mixtures ------------------------------------------------------------------------------------


def interpolate(raw: RawClient, **fields: Any) -> dict[str, Any]:
    answer = raw.post("/mint/checkpoints/interpolate", fields)
    assert answer.status_code == 200, answer.text
    return raw.result(answer.json()["request_id"])


def test_a_mixture_of_checkpoints_can_be_sampled(
    client: tinker.ServiceClient, training: tinker.TrainingClient, raw: RawClient
) -> None:
    paths = []
    for seed in range(2):
        train(training, seed)
        paths.append(training.save_weights_for_sampler(f"step-{seed}").result().path)
    request = {"source_paths": paths, "coefficients": [0.0, 1.0], "output_path": "ema"}
    mixed = interpolate(raw, **request)
    assert mixed["path"] == f"tinker://{training.model_id}/sampler_weights/ema"
    assert mixed["type"] == "mint_interpolate_checkpoints"
    np.testing.assert_allclose(scores(client, mixed["path"]), scores(client, paths[1]), atol=1e-5)
    assert interpolate(raw, **request) == mixed, "the same request is done once"
    assert raw.post("/weights_info", {"tinker_path": mixed["path"]}).json()["lora_rank"] == 8
    taken = interpolate(raw, **{**request, "coefficients": [0.5, 0.5]})
    assert "already exists" in taken["error"]
    unnamed = interpolate(raw, source_paths=paths, coefficients=[0.5, 0.5])
    assert unnamed["path"].startswith(f"tinker://{training.model_id}/sampler_weights/")


def test_a_checkpoint_that_is_overwritten_while_it_is_mixed_is_mixed_in_one_version(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local, sampler: SamplingSession, _: EngineProcess) -> None:
        path, other = str(sampler.row.model_path), await save_other(local)

        async def mixed(name: str) -> bytes:
            body = {"source_paths": [path], "coefficients": [0.5], "output_path": name}
            answer = await local.post("/mint/checkpoints/interpolate", body)
            found = await result(local, answer)
            folder = local.service.checkpoints.folder(CheckpointPath.parse(found["path"]))
            return (folder / "adapter_model.safetensors").read_bytes()

        first = await mixed("first")
        overwrite_while_read(local, path, other, "adapter_model.safetensors")
        assert await mixed("second") == first

    with_sampler(tmp_path, tiny_model, work)


def test_a_mixture_of_nonsense_is_refused(training: tinker.TrainingClient, raw: RawClient) -> None:
    path = training.save_weights_for_sampler("p").result().path
    for fields, named in (
        ({"source_paths": [path], "coefficients": []}, "coefficients"),
        ({"source_paths": [], "coefficients": []}, "source_paths"),
        ({"source_paths": [path], "coefficients": [None]}, "coefficients"),
        ({"source_paths": ["x"], "coefficients": [1]}, "checkpoint path"),
        (
            {"source_paths": [path], "coefficients": [1], "output_path": "a/b"},
            "valid checkpoint name",
        ),
        ({"source_paths": [path], "coefficients": [1], "output_path": "tinker://x"}, "path"),
        (
            {
                "source_paths": [path],
                "coefficients": [1],
                "output_path": "tinker://other:train:0/sampler_weights/x",
            },
            "output_path",
        ),
        (
            {"source_paths": [path], "coefficients": [1], "output_checkpoint_type": "training"},
            "type",
        ),
    ):
        answer = raw.post("/mint/checkpoints/interpolate", fields)
        assert answer.status_code in (400, 404, 422), fields
        assert named in answer.json()["detail"]
