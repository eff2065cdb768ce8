"""Ask the service which weights a sampler has."""

import httpx
import tinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
from tinker.lib.internal_client_holder import InternalClientHolder
from tinker.lib.public_interfaces.api_future import APIFuture


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
