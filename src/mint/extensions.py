"""What a mint service offers beyond the SDK: more sampling parameters, digests and error codes."""

import re
from typing import Any

import httpx
import tinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
from tinker.lib.internal_client_holder import InternalClientHolder
from tinker.lib.public_interfaces.api_future import APIFuture

from mint.types import ExtendedSampleRequest

_FIELDS = (
    *("seq_id", "num_samples", "prompt", "sampling_params", "prompt_logprobs"),
    *("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs"),
    *("prompt_alt_tokens_k", "prompt_logprobs_last_n"),
)
"""The fields of a request in the order of ``SamplingClient._send_asample_request``'s arguments."""
_CODE = re.compile(r"\[([a-z_]+)\](?: for self\.request_id=|$)")


async def send_extended_sample(client: tinker.SamplingClient, *arguments: Any) -> Any:
    """Send a sample request with all of its parameters, in the order of ``_FIELDS``.

    None means: wait, then send it again.
    """
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


def fetch_digest(holder: InternalClientHolder, sampler_id: str) -> APIFuture[str | None]:
    """Return the digest of a sampler's weights; None for a base model or another service's."""

    async def get() -> str | None:
        with holder.aclient(ClientConnectionPoolType.SESSION) as client:
            path = f"/api/v1/samplers/{sampler_id}"
            try:
                answer = await client.get(path, cast_to=httpx.Response)
            except tinker.APIStatusError as error:
                if error.status_code >= 500:
                    raise
                return None
            digest = answer.json().get("weights_digest")
            return digest if isinstance(digest, str) else None

    return holder.run_coroutine_threadsafe(get())


def error_code(error: tinker.RequestFailedError) -> str | None:
    """Return the code of a failed request, such as ``not_finite``; None if it has none.

    The wire protocol has no field for a code, and the SDK passes on only the text and the category
    of a failure. So a mint service writes the code in brackets at the end of the text.

    >>> user = tinker.types.RequestErrorCategory.User
    >>> error_code(tinker.RequestFailedError("The loss is NaN. [not_finite]", "1", user))
    'not_finite'
    """
    found = _CODE.search(error.message)
    return found[1] if found else None
