"""Reverse KL towards a teacher, over the whole vocabulary: an operation that ``tinker`` lacks.

The request is the one that MinT's own client sends.
"""

import time
from collections.abc import Sequence
from typing import Any

import tinker
from pydantic import BaseModel
from tinker import types
from tinker.lib.api_future_impl import _APIFuture
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
from tinker.lib.public_interfaces.api_future import APIFuture


class ReverseKLDatum(BaseModel):
    """Tokens that a student and a teacher read, each after a prompt of its own.

    The targets are the tokens that follow the last ``len(target_tokens)`` positions of either
    input: an answer without its last token ends both, and the whole answer is the targets.
    """

    student_input: types.ModelInput
    reference_input: types.ModelInput
    target_tokens: Sequence[int]
    weights: Sequence[float]

    def on_the_wire(self) -> dict[str, Any]:
        shape = [len(self.target_tokens)]
        targets = {"data": list(self.target_tokens), "shape": shape, "dtype": "int64"}
        weights = {"data": list(self.weights), "shape": [len(self.weights)], "dtype": "float32"}
        return {**self.model_dump(mode="json"), "target_tokens": targets, "weights": weights}


class ReverseKLLoss(BaseModel):
    """The reverse KL of one datum, summed over its tokens."""

    data: list[float]


class ReverseKLDatumOutput(BaseModel):
    """The result for one datum."""

    loss: ReverseKLLoss


class ReverseKLOutput(BaseModel):
    """The outputs of the datums in their order, and metrics over all of them."""

    outputs: list[ReverseKLDatumOutput]
    metrics: dict[str, float]


def submit_reverse_kl(
    client: tinker.TrainingClient,
    data: Sequence[ReverseKLDatum],
    reference_model_path: str,
    temperature: float,
) -> APIFuture[ReverseKLOutput]:
    """Submit the operation to the run, after those that were submitted before it."""
    number = client._get_request_id()
    body = {
        "model_id": client._guaranteed_model_id(),
        "reference_model_path": reference_model_path,
        "data": [datum.on_the_wire() for datum in data],
        "temperature": temperature,
        "seq_id": number + 1,
        "type": "mint_forward_backward_reverse_kl",
    }

    async def send() -> types.UntypedAPIFuture:
        with client.holder.aclient(ClientConnectionPoolType.TRAIN) as http:
            return await http.post(
                "/api/v1/mint/forward_backward_reverse_kl",
                body=body,
                cast_to=types.UntypedAPIFuture,
            )

    async def submit() -> ReverseKLOutput:
        began = time.time()
        async with client._take_turn(number):
            accepted = await client.holder.execute_with_retries(send)
        output: ReverseKLOutput = await _APIFuture(
            ReverseKLOutput,
            client.holder,
            accepted,
            request_start_time=began,
            request_type="MintForwardBackwardReverseKL",
            queue_state_observer=client._queue_state_logger,
        )
        return output

    return client.holder.run_coroutine_threadsafe(submit())
