"""What the moving parts of a service share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .checkpoints import Checkpoints
from .decoding import Decoder
from .engines import Engines
from .futures import Futures
from .quotas import Quota
from .sessions import Sessions
from .settings import Settings
from .store import Store
from .usage import Usage


@dataclass(frozen=True)
class Parts:
    """Made once by the service; runs and samplers are built on it."""

    settings: Settings
    store: Store
    sessions: Sessions
    futures: Futures
    engines: Engines
    checkpoints: Checkpoints
    decoder: Decoder
    usage: Usage
    quota_of: Callable[[str], Quota]
