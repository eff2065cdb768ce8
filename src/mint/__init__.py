"""mint: RL post-training that you run yourself.

``import mint`` offers everything ``tinker`` exports. The clients are ours: with no URL they start
a service on this machine, and ``mint.types`` knows the arguments that MinT's documentation shows.

    import mint
    from mint import types

    service_client = mint.ServiceClient()
    training_client = service_client.create_lora_training_client(base_model=..., rank=16)

Names are loaded when they are first used, so that the service and the engine, which live in the
same package, start without the SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# isort: off
if TYPE_CHECKING:
    from mint import types as types
    from mint.client import RestClient as RestClient
    from mint.client import SamplingClient as SamplingClient
    from mint.client import ServiceClient as ServiceClient
    from mint.client import TrainingClient as TrainingClient
    from mint.reverse_kl import ReverseKLDatum as ReverseKLDatum
    from mint.types import AdamParams as AdamParams
    from mint.types import SamplingParams as SamplingParams
    from tinker import *  # type: ignore[assignment,no-redef]  # the names above win over these
# isort: on

__version__ = "0.1.0"

_OURS = {
    "ServiceClient": "mint.client",
    "TrainingClient": "mint.client",
    "SamplingClient": "mint.client",
    "RestClient": "mint.client",
    "ReverseKLDatum": "mint.reverse_kl",
    "AdamParams": "mint.types",
    "SamplingParams": "mint.types",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        value: Any = sorted({*import_module("tinker").__all__, *_OURS} - {"__title__"})
    elif name == "types":
        value = import_module("mint.types")
    elif name in _OURS:
        value = getattr(import_module(_OURS[name]), name)
    elif name.startswith("__") or name not in import_module("tinker").__all__:
        raise AttributeError(f"module 'mint' has no attribute {name!r}")
    else:
        value = getattr(import_module("tinker"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
