"""Objects that runs and samplers share."""

from collections.abc import Callable
from dataclasses import dataclass

from mint.service.access.quotas import Quota
from mint.service.access.usage import Usage
from mint.service.admin.settings import Settings
from mint.service.checkpoints.storage import CheckpointStore
from mint.service.engines.pool import Engines
from mint.service.store.database import Store
from mint.service.store.sessions import Sessions
from mint.service.wire.decoding import Decoder

from .futures import Futures


@dataclass(frozen=True)
class Parts:
    """Made once by the service; runs and samplers are built on it."""

    settings: Settings
    store: Store
    sessions: Sessions
    futures: Futures
    engines: Engines
    checkpoints: CheckpointStore
    decoder: Decoder
    usage: Usage
    quota_of: Callable[[str], Quota]
