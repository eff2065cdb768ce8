"""How a service is started."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Everything ``mint serve`` can be told. Checks itself when made.

    >>> Settings(home=Path("/tmp/mint"), port=8000).is_loopback
    True
    """

    home: Path
    """Folder of the database, the journals, the checkpoints and the logs."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port; the ready line names it."""
    models: tuple[str, ...] = ()
    """Base models to load before the service is ready. Others load on first use."""
    aliases: Mapping[str, Path] = field(default_factory=dict)
    """Names for model folders: ``{"Qwen/Qwen3-8B": Path("/models/tiny")}``."""
    api_key: str | None = None
    """When set, the only accepted key (the embedded service uses it)."""
    parent_pid: int | None = None
    """When set, the service ends when this parent process is gone."""
    database_url: str | None = None
    """Default: SQLite in ``home``. PostgreSQL: ``postgresql+psycopg://user@host/mint``."""
    cache: Path | None = None
    """Folder of converted models, passed to the catalog."""
    session_idle_s: float = 300.0
    """A session without a heartbeat for this long gives its memory back."""
    result_kept_s: float = 3600.0
    """How long a result stays retrievable; after its first retrieval, a tenth of that."""
    long_poll_s: float = 25.0
    gap_limit_s: float = 600.0
    """How long an operation waits for an earlier one that never arrives."""
    run_kept_s: float = 7 * 24 * 3600.0
    """How long the journal and snapshot of an unused run stay on disk. Checkpoints always stay."""
    load_limit_s: float = 1800.0
    """How long a base model may take to load."""
    stuck_after_s: float = 3600.0
    """An engine that answers none of its calls for this long is ended."""
    snapshot_after_s: float = 120.0
    """Snapshot a run when this much engine work would have to be replayed after a crash."""
    snapshot_after_bytes: int = 256 * 1024 * 1024
    samplers_per_run: int = 32
    """Ephemeral samplers of one run kept in memory; the least recently used goes first."""
    max_outstanding_samples: int = 20_000
    max_body_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", Path(self.home).expanduser().absolute())
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 (a free one) and 65535, not {self.port}")
        if not self.host:
            raise ValueError("host must not be empty; 127.0.0.1 serves this machine only")
        if self.api_key is not None and not self.api_key:
            raise ValueError("api_key must not be empty; leave it out to use created keys")
        if self.samplers_per_run < 1:
            raise ValueError("samplers_per_run must be at least 1")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'mint.db'}"

    @property
    def logs(self) -> Path:
        return self.home / "logs"
