"""The API is unchanged, unless a change was intended: ``make snapshots``."""

from __future__ import annotations

import json
from difflib import unified_diff

import pytest
from tinker.proto import response_conv

from .snapshot import FOLDER, FORWARD_BACKWARD_ANSWERS, SAMPLE_ANSWERS, SNAPSHOTS, text_of

HINT = "The API has changed. If that is meant, type: make snapshots"


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_contract_is_unchanged(name: str) -> None:
    written, now = (FOLDER / name).read_text().splitlines(), text_of(name).splitlines()
    changes = list(unified_diff(written, now, "written down", "now", lineterm="", n=5))
    assert not changes, "\n".join([HINT, *changes[:100]])


def test_the_newest_client_reads_every_answer() -> None:
    answers = json.loads((FOLDER / "protobuf.json").read_text())
    for name in FORWARD_BACKWARD_ANSWERS:
        output = response_conv.deserialize_forward_backward_output(
            bytes.fromhex(answers[name]["bytes"])
        )
        expected = FORWARD_BACKWARD_ANSWERS[name]
        assert output.metrics == expected.metrics
        for record, logprobs in zip(output.loss_fn_outputs, expected.logprobs, strict=True):
            assert record["logprobs"].to_numpy().tolist() == logprobs.tolist()
    for name in SAMPLE_ANSWERS:
        response = response_conv.deserialize_sample_response(bytes.fromhex(answers[name]["bytes"]))
        assert [s.tokens for s in response.sequences] == [
            s.tokens.tolist() for s in SAMPLE_ANSWERS[name].sequences
        ]
