"""Sampling with parameters that the SDK's request does not have: ``min_p`` and ``renormalize``."""

from typing import Any

import tinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from mint.types import ExtendedSampleRequest

_FIELDS = (
    *("seq_id", "num_samples", "prompt", "sampling_params", "prompt_logprobs"),
    *("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs"),
    *("prompt_alt_tokens_k", "prompt_logprobs_last_n"),
)
"""What the arguments of the SDK's ``SamplingClient._send_asample_request`` are in a request."""


async def send_extended_sample(client: tinker.SamplingClient, *arguments: Any) -> Any:
    """Send a sample request with all of its parameters, given as to the SDK's
    ``SamplingClient._send_asample_request``. None means: wait, then send it again."""
    request = ExtendedSampleRequest(
        sampling_session_id=client._sampling_session_id,
        **dict(zip(_FIELDS, arguments, strict=True)),
    )
    try:
        with client.holder.aclient(ClientConnectionPoolType.SAMPLE) as http:
            return await http.sampling.asample(
                request=request,
                max_retries=0,
                extra_headers={"X-Tinker-Sampling-Backpressure": "1"},
            )
    except tinker.APIStatusError as error:
        if error.status_code == 429:
            return None
        raise
