"""The clients: ``tinker``'s, with our defaults for where the service is and which key to send.

A client without a URL starts a service on this machine (see :mod:`mint.embedded`). Paths of
checkpoints may be written ``mint://…`` as well as ``tinker://…``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tinker
from tinker import types as tinker_types
from tinker.lib.internal_client_holder import InternalClientHolder
from tinker.lib.public_interfaces.api_future import APIFuture
from tinker.lib.retry_handler import RetryConfig

from mint.embedded import (
    bypass_proxies,
    embedded_service,
    is_this_machine,
    named_key,
    named_url,
)
from mint.extensions import fetch_digest, send_extended_sample
from mint.reverse_kl import ReverseKLDatum, ReverseKLOutput, submit_reverse_kl
from mint.tokenizer import fetch_tokenizer, plain_tokenizer
from mint.types import SamplingParams

_Client = TypeVar("_Client")


def resolve_service(base_url: str | None, api_key: str | None) -> tuple[str, str]:
    """Return the URL and key from the arguments, the environment, or the embedded service."""
    url, key = named_url(base_url), named_key(api_key)
    if not url:
        service = embedded_service()
        return service.url, service.key
    bypass_proxies(url)
    if key:
        return url, wire_key(key)
    if is_this_machine(url):
        return url, "tml-local"
    raise tinker.TinkerError(
        f"There is no API key for {url}. Set MINT_API_KEY, or pass api_key=... to the client."
    )


def wire_key(key: str) -> str:
    """Return a key as it is sent.

    >>> wire_key("sk-123"), wire_key("tml-123")
    ('tml-sk-123', 'tml-123')
    """
    return key if key.startswith(("tml-", "eyJ")) else f"tml-{key}"


def wire_path(path: str) -> str:
    """Return a checkpoint's path as it is sent.

    >>> wire_path("mint://run/weights/final")
    'tinker://run/weights/final'
    """
    return "tinker://" + path.removeprefix("mint://") if path.startswith("mint://") else path


def _as(client_class: type[_Client], client: Any) -> _Client:
    """Turn a client that the SDK has just created into our subclass."""
    client.__class__ = client_class
    assert isinstance(client, client_class)
    return client


def _without_telemetry(holder: InternalClientHolder) -> InternalClientHolder:
    """Stop the SDK's usage events: no one reads them, and sending them delays errors and exits."""
    if holder._telemetry is not None:
        holder._telemetry.stop()  # type: ignore[no-untyped-call]
        holder._telemetry = None
    return holder


class SamplingClient(tinker.SamplingClient):
    """Samples from one immutable set of weights.

    Created by ``TrainingClient.save_weights_and_get_sampling_client`` or
    ``ServiceClient.create_sampling_client``.
    """

    def get_tokenizer(self) -> Any:
        """Return the base model's tokenizer, from the service."""
        tokenizer = fetch_tokenizer(self.holder, self.get_base_model())
        return tokenizer if tokenizer is not None else plain_tokenizer(super().get_tokenizer())

    def weights_digest(self) -> APIFuture[str | None]:
        """Return the SHA-256 of the adapter that samples; None for a base model.

        The service checks it wherever the weights are loaded, moved or restored.
        """
        return fetch_digest(self.holder, self._sampling_session_id)

    async def _send_asample_request(self, *arguments: Any) -> Any:
        """Send a request, including sampling parameters that the SDK does not have.

        The SDK calls this with ``request_id`` first and ``sampling_params`` fourth. Its own request
        class leaves out what a subclass of ``SamplingParams`` adds.
        """
        params = arguments[3]
        if not isinstance(params, SamplingParams) or not params.is_extended:
            return await super()._send_asample_request(*arguments)
        return await send_extended_sample(self, *arguments)

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """Return the client of a ``get_sampler_handle`` of any process."""
        key = named_key(api_key)
        client = tinker.SamplingClient.from_sampler_handle(
            handle, api_key=wire_key(key) if key else None
        )
        return _own_sampling_client(client)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _unpickle, super().__reduce__()


def _own_sampling_client(client: tinker.SamplingClient) -> SamplingClient:
    _without_telemetry(client.holder)
    return _as(SamplingClient, client)


def _unpickle(build: Callable[..., tinker.SamplingClient], arguments: Any) -> SamplingClient:
    return _own_sampling_client(build(*arguments))


def _accept_mint_paths(client_class: type[_Client]) -> type[_Client]:
    """Make every method that takes a checkpoint's path accept ``mint://`` paths."""
    for name, method in inspect.getmembers(client_class, inspect.isfunction):
        parameters = list(inspect.signature(method).parameters)
        takes_path = parameters[1:2] in (["tinker_path"], ["path"], ["model_path"])
        if takes_path and not name.startswith("_"):
            setattr(client_class, name, _with_wire_path(method, parameters[1]))
    return client_class


def _with_wire_path(method: Callable[..., Any], parameter: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and args[0]:
            args = (wire_path(args[0]), *args[1:])
        elif kwargs.get(parameter):
            kwargs[parameter] = wire_path(kwargs[parameter])
        return method(self, *args, **kwargs)

    return call


@_accept_mint_paths
class TrainingClient(tinker.TrainingClient):
    """Trains one LoRA adapter. Created by ``ServiceClient.create_lora_training_client``."""

    def forward(
        self,
        data: list[tinker_types.Datum],
        loss_fn: tinker_types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> APIFuture[tinker_types.ForwardBackwardOutput]:
        """Return the loss and logprobs of ``data``, without gradients."""
        _check_not_empty(data, "forward")
        return super().forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self,
        data: list[tinker_types.Datum],
        loss_fn: tinker_types.LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> APIFuture[tinker_types.ForwardBackwardOutput]:
        """Add the gradient of ``data``'s loss to what ``optim_step`` will apply."""
        _check_not_empty(data, "forward_backward")
        return super().forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_reverse_kl(
        self,
        data: Sequence[ReverseKLDatum],
        reference_model_path: str,
        temperature: float = 1.0,
    ) -> APIFuture[ReverseKLOutput]:
        """Add the gradient of the reverse KL towards a reference, over the whole vocabulary.

        ``reference_model_path`` is a checkpoint's path or a base model's name, of the model that
        this run trains.
        """
        _check_not_empty(data, "forward_backward_reverse_kl")
        return submit_reverse_kl(self, data, wire_path(reference_model_path), temperature)

    def load_state(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[tinker_types.LoadWeightsResponse]:
        """Load the weights of a checkpoint; the optimizer state is reset."""
        return self._load_state_impl(path, False, weights_access_token)

    async def load_state_async(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[tinker_types.LoadWeightsResponse]:
        return self.load_state(path, weights_access_token)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[tinker_types.LoadWeightsResponse]:
        """Load the weights and the optimizer state of a checkpoint."""
        return self._load_state_impl(path, True, weights_access_token)

    async def load_state_with_optimizer_async(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[tinker_types.LoadWeightsResponse]:
        return self.load_state_with_optimizer(path, weights_access_token)

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Return a client that samples from the current weights.

        ``name`` has no effect; ``save_weights_for_sampler(name=...)`` saves the weights.
        """
        client = super().save_weights_and_get_sampling_client(
            retry_config=retry_config, record_stability_info=record_stability_info
        )
        return _as(SamplingClient, client)

    async def save_weights_and_get_sampling_client_async(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        sampling_session_id = await self._save_weights_for_sampler_impl(None, None, None)
        assert isinstance(sampling_session_id, str)
        client = await tinker.SamplingClient.create(
            self.holder,
            sampling_session_id=sampling_session_id,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )
        return _as(SamplingClient, client)

    def create_sampling_client(self, model_path: str, *args: Any, **kwargs: Any) -> SamplingClient:
        """Return a client that samples from a checkpoint."""
        return _as(SamplingClient, super().create_sampling_client(model_path, *args, **kwargs))

    async def create_sampling_client_async(
        self, model_path: str, *args: Any, **kwargs: Any
    ) -> SamplingClient:
        client = await super().create_sampling_client_async(model_path, *args, **kwargs)
        return _as(SamplingClient, client)

    def get_tokenizer(self) -> Any:
        """Return the base model's tokenizer, from the service."""
        model = self._get_info_submit().result().model_data.model_name
        tokenizer = fetch_tokenizer(self.holder, model) if model else None
        return tokenizer if tokenizer is not None else plain_tokenizer(super().get_tokenizer())


def _check_not_empty(data: Sequence[object], method: str) -> None:
    if not data:
        raise ValueError(
            f"{method} was called without data. If every group of a step has equal rewards, there "
            "are no datums to train on: skip the step."
        )


@_accept_mint_paths
class RestClient(tinker.RestClient):
    """Lists and manages runs and checkpoints, without a session."""

    def __init__(
        self,
        _holder: InternalClientHolder | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        if _holder is None:
            url, key = resolve_service(base_url, api_key)
            super().__init__(base_url=url, api_key=key)
        else:
            super().__init__(_holder)
        _without_telemetry(self.holder)


@_accept_mint_paths
class ServiceClient(tinker.ServiceClient):
    """The first object of a script: it creates the clients that train and sample.

    ``base_url`` and ``api_key`` default to ``MINT_BASE_URL`` and ``MINT_API_KEY``, then to
    ``TINKER_BASE_URL`` and ``TINKER_API_KEY``. Without any URL, a service is started on this
    machine and ends with this process.
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        url, key = resolve_service(base_url, api_key)
        super().__init__(user_metadata, project_id, base_url=url, api_key=key, **kwargs)

    def _get_session_holder(self) -> InternalClientHolder:
        return _without_telemetry(super()._get_session_holder())

    def _get_rest_holder(self) -> InternalClientHolder:
        return _without_telemetry(super()._get_rest_holder())

    def create_lora_training_client(
        self, base_model: str, *args: Any, **kwargs: Any
    ) -> TrainingClient:
        """Start a run: a new LoRA adapter on ``base_model``.

        Takes ``rank``, ``seed``, ``train_mlp``, ``train_attn``, ``train_unembed`` and
        ``user_metadata``, as ``tinker`` does.
        """
        return _as(TrainingClient, super().create_lora_training_client(base_model, *args, **kwargs))

    async def create_lora_training_client_async(
        self, base_model: str, *args: Any, **kwargs: Any
    ) -> TrainingClient:
        client = await super().create_lora_training_client_async(base_model, *args, **kwargs)
        return _as(TrainingClient, client)

    def create_training_client_from_state(
        self, path: str, *args: Any, **kwargs: Any
    ) -> TrainingClient:
        """Create a run that starts from a checkpoint's weights."""
        return _as(TrainingClient, super().create_training_client_from_state(path, *args, **kwargs))

    async def create_training_client_from_state_async(
        self, path: str, *args: Any, **kwargs: Any
    ) -> TrainingClient:
        client = await super().create_training_client_from_state_async(path, *args, **kwargs)
        return _as(TrainingClient, client)

    def create_training_client_from_state_with_optimizer(
        self, path: str, *args: Any, **kwargs: Any
    ) -> TrainingClient:
        """Create a run that resumes from a checkpoint: weights and optimizer."""
        client = super().create_training_client_from_state_with_optimizer(path, *args, **kwargs)
        return _as(TrainingClient, client)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, *args: Any, **kwargs: Any
    ) -> TrainingClient:
        client = await super().create_training_client_from_state_with_optimizer_async(
            path, *args, **kwargs
        )
        return _as(TrainingClient, client)

    def create_sampling_client(
        self, model_path: str | None = None, *args: Any, **kwargs: Any
    ) -> SamplingClient:
        """Return a client that samples from a checkpoint (``model_path``) or a ``base_model``."""
        return _as(SamplingClient, super().create_sampling_client(model_path, *args, **kwargs))

    async def create_sampling_client_async(
        self, model_path: str | None = None, *args: Any, **kwargs: Any
    ) -> SamplingClient:
        client = await super().create_sampling_client_async(model_path, *args, **kwargs)
        return _as(SamplingClient, client)

    def _rest_client(self) -> RestClient:
        return RestClient(self._get_rest_holder())

    def create_rest_client(self) -> RestClient:
        """Return a client that lists and manages runs and checkpoints."""
        return self._rest_client()
