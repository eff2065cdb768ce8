"""The components that runs, samplers and transfers share."""

from collections.abc import Awaitable, Callable

from mint.service.access.auth import Auth
from mint.service.access.usage import Usage
from mint.service.admin.settings import Settings
from mint.service.checkpoints.storage import CheckpointStore
from mint.service.engines.pool import Engines
from mint.service.engines.process import EngineProcess
from mint.service.store.database import Store
from mint.service.store.sessions import Sessions
from mint.service.wire.decoding import Decoder

from .futures import Futures


class SharedComponents:
    """The components of a service that do not depend on its runs and samplers."""

    def __init__(
        self, settings: Settings, before_unload: Callable[[EngineProcess], Awaitable[None]]
    ) -> None:
        self.settings = settings
        self.store = Store(settings.store_url, settings.home)
        self.auth = Auth(settings, self.store)
        self.find_quota = self.auth.find_quota
        self.usage = Usage(self.store)
        self.sessions = Sessions(self.store)
        self.futures = Futures(
            settings.result_kept_s,
            settings.max_result_bytes,
            settings.max_stored_result_bytes,
            settings.home / "results",
        )
        self.engines = Engines(settings, before_unload)
        self.checkpoints = CheckpointStore(settings.home, self.store, self.find_quota)
        self.decoder = Decoder(settings.max_body_bytes)
