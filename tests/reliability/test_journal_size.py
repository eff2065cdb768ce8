"""A journal stays small, whatever a run is used for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint.service.runs import run as of_runs
from tests.reliability.local import Local, with_service
from tests.reliability.test_crashes import STEP
from tests.service.samples import batch, forward, json_datum
from tests.service_fixture import MODEL, LiveService, RawClient

Start = Callable[..., LiveService]
LIMIT, PADDING = 100_000, "x" * 30_000


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_never_steps_keeps_a_small_journal(own_service: Start, fails: bool) -> None:
    """It only scores, as the reference of another run does; or all that it sends is wrong."""
    service = own_service(snapshot_after_bytes=LIMIT)
    raw = RawClient(service.base_url)
    run = raw.run()
    data = forward(json_datum([5, 6, 99_999 if fails else 7]))
    for number in range(1, 21):
        answer = raw.retrieve(raw.operate("forward", run, number, **data, padding=PADDING))
        assert (b"token ids" in answer.content) == fails
    journal = service.home / "runs" / run.replace(":", "_") / "journal"
    while journal.stat().st_size > LIMIT + 2 * len(PADDING):
        pass  # the snapshot is taken after the answer
    service.kill()
    raw = RawClient(own_service(service.port, snapshot_after_bytes=LIMIT).base_url)
    assert "metrics" in raw.result(raw.operate("optim_step", run, 21, **STEP))


def test_a_journal_that_cannot_be_cut_has_a_limit(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are accumulated and never used; after a step the run accepts them again."""
    monkeypatch.setattr(of_runs, "MAX_JOURNAL_BYTES", LIMIT)

    async def work(local: Local) -> list[Any]:
        async def result(path: str, body: dict[str, Any]) -> Any:
            request = (await local.post(path, body)).json()["request_id"]
            while True:
                answer = await local.post("/retrieve_future", {"request_id": request})
                if answer.status_code != 408:
                    return answer.json() if "json" in answer.headers["content-type"] else "done"

        lora = {"rank": 2, "seed": 1}
        body = {"session_id": await local.session(), "model_seq_id": 0, "base_model": MODEL}
        run = (await result("/create_model", {**body, "lora_config": lora}))["model_id"]
        answers = []
        for number in range(1, 8):
            step = {"model_id": run, "seq_id": number, **batch(json_datum()), "padding": PADDING}
            answers.append(await result("/forward_backward", step))
        journal = tmp_path / "runs" / run.replace(":", "_") / "journal"
        assert journal.stat().st_size < LIMIT + 2 * len(PADDING)
        assert "metrics" in await result("/optim_step", {"model_id": run, "seq_id": 8, **STEP})
        again = {"model_id": run, "seq_id": 9, **batch(json_datum())}
        return [*answers, await result("/forward_backward", again)]

    settings = {"aliases": {MODEL: tiny_model}, "precision": "exact", "snapshot_after_bytes": 0}
    *kept, refused, again = with_service(tmp_path, work, **settings)
    assert kept[:4] == ["done"] * 4
    assert "Send optim_step" in refused["error"]
    assert again == "done"
