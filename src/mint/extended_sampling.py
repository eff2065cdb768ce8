"""Sampling with parameters that the SDK's request does not have: ``min_p`` and ``renormalize``."""

from typing import Any

import tinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from mint.types import ExtendedSampleRequest, SamplingParams


async def send_extended_sample(
    client: tinker.SamplingClient,
    request_id: int,
    num_samples: int,
    prompt: tinker.types.ModelInput,
    sampling_params: SamplingParams,
    include_prompt_logprobs: bool,
    topk_prompt_logprobs: int,
    topk_sample_logprobs: int,
    target_prompt_logprobs: Any,
    prompt_alt_tokens_k: int,
    prompt_logprobs_last_n: int | None,
) -> Any:
    """Send a sample request with all of its parameters. None means: wait, then send it again.

    The arguments are those of the SDK's ``SamplingClient._send_asample_request``.
    """
    request = ExtendedSampleRequest(
        sampling_session_id=client._sampling_session_id,
        seq_id=request_id,
        num_samples=num_samples,
        prompt=prompt,
        sampling_params=sampling_params,
        prompt_logprobs=include_prompt_logprobs,
        topk_prompt_logprobs=topk_prompt_logprobs,
        topk_sample_logprobs=topk_sample_logprobs,
        target_prompt_logprobs=target_prompt_logprobs,
        prompt_alt_tokens_k=prompt_alt_tokens_k,
        prompt_logprobs_last_n=prompt_logprobs_last_n,
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
