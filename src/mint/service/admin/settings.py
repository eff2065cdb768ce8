"""The settings of a service."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from mint.home import default_home
from mint.settings import Strings

Seconds = Annotated[float, Field(ge=0, le=10**10)]
_NO_VARIABLE: Any = {"env": None}  # MINT_API_KEY is the key that clients send


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is that of this machine only.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("192.168.0.1")
    (True, True, False)
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Settings(BaseModel):
    """The settings of ``mint serve``, validated when created.

    Flags, ``MINT_*`` variables and the YAML file all fill these fields: see
    :mod:`mint.service.admin.configuration`.

    >>> Settings(home=Path("/tmp/mint"), port=8000).is_loopback
    True
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True
    )

    home: Path = Field(default_factory=default_home)
    """Folder of the database, the journals, the checkpoints and the logs."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on. 127.0.0.1 serves this machine only."""
    allowed_hosts: Strings = ()
    """More host names that requests to this machine may use, such as that of a proxy in front of
    it, and hosts of web pages that may send requests."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 chooses a free port; the ready line names it."""
    tls_certificate: Path | None = None
    """PEM file of the certificate and its chain. With it, the service speaks HTTPS only."""
    tls_key: Path | None = None
    """PEM file of the private key, unless the file of the certificate contains it."""
    models: Strings = Field((), json_schema_extra={"env": "MINT_PRELOAD"})
    """Base models to load before the service is ready. Others load on first use."""
    aliases: Mapping[str, Path] = Field({}, json_schema_extra={"env": "MINT_MODELS"})
    """Names for model folders: ``{"Qwen/Qwen3-8B": Path("/models/tiny")}``."""
    api_key: Annotated[str, Field(min_length=1)] | None = Field(
        None, repr=False, json_schema_extra=_NO_VARIABLE
    )
    """When set, the only accepted key (the embedded service uses it)."""
    parent_pid: int | None = Field(None, json_schema_extra=_NO_VARIABLE)
    """When set, the service shuts down when this parent process exits."""
    database_url: str | None = Field(default=None, repr=False)
    """Default: SQLite in ``home``. PostgreSQL: ``postgresql+psycopg://user@host/mint``."""
    runs: Path = Path("runs")
    """Folder of the run directories that ``/watch`` shows, to the local user on this machine."""
    cache: Path | None = None
    """Folder of converted models, passed to the catalog."""
    precision: Literal["auto", "exact", "half", "bfloat16"] = "auto"
    """Precision of the models: ``auto`` is the fastest for the device, ``exact`` makes the
    logprobs of sampler and trainer agree to 1e-4."""
    log_format: Literal["text", "json"] = "text"
    """``json`` writes one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level to log. At ``info``, every request is one line."""
    session_idle_s: Seconds = 300.0
    """A session without a heartbeat for this long is released."""
    result_kept_s: Seconds = 3600.0
    """How long a result stays retrievable; after its first retrieval, a tenth of that."""
    long_poll_s: Seconds = 25.0
    """How long a poll for a result is held open before the client must repeat it."""
    gap_limit_s: Seconds = 600.0
    """How long an operation waits for an earlier one that never arrives."""
    run_kept_s: Seconds = 7 * 24 * 3600.0
    """How long the journal and snapshot of an unused run are kept. Checkpoints are always kept."""
    expired_kept_s: Seconds = 3600.0
    """How long an expired checkpoint is hidden before it is deleted, in case the clock jumped."""
    load_limit_s: Seconds = 1800.0
    """How long a base model may take to load."""
    stuck_after_s: Seconds = 3600.0
    """An engine that answers no call for this long is killed."""
    snapshot_after_s: Seconds = 120.0
    """Snapshot a run when this much engine work would have to be replayed after a crash."""
    snapshot_after_bytes: NonNegativeInt = 256 * 1024 * 1024
    """Snapshot a run when its journal has grown to this size."""
    samplers_per_run: PositiveInt = 32
    """Ephemeral samplers of one run kept in memory; the least recently used is evicted first."""
    samplers_kept_per_run: NonNegativeInt = 16
    """Ephemeral samplers of one run kept on disk after they are evicted from memory."""
    model_idle_s: Seconds = 1800.0
    """A base model that is idle for this long is unloaded; those in ``models`` stay."""
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Memory for all loaded base models: the GPU's on a GPU, the machine's on a CPU. The least
    recently used one is unloaded to make room."""
    link_kept_s: Seconds = 3600.0
    """How long a signed download link works."""
    disk_reserve_bytes: ByteSize = ByteSize(512 * 1024 * 1024)
    """Training pauses while the disk of ``home`` has less than this free."""
    disk_wait_s: Seconds = 3600.0
    """How long training operations wait for space on a full disk before they fail."""
    max_outstanding_samples: NonNegativeInt = 20_000
    """Samples in progress at once; further requests get 429, and clients retry. One user may use
    four fifths of what other users leave free."""
    max_result_bytes: NonNegativeInt = 256 * 1024 * 1024
    """Memory for finished results; beyond it, the oldest are moved to disk. One user may use four
    fifths of what other users leave free."""
    max_stored_result_bytes: NonNegativeInt = 4 * 1024 * 1024 * 1024
    """Disk space for finished results; beyond it, the oldest are dropped, and clients send the
    sample again."""
    request_limit_s: Seconds = 60.0
    """How long the headers of a request may take to arrive; its body may take as long, and a second
    more for every 10 kB."""
    max_body_bytes: NonNegativeInt = 1024 * 1024 * 1024
    """The largest request that is accepted."""
    max_upload_bytes: NonNegativeInt = 64 * 1024 * 1024 * 1024
    """The largest checkpoint archive that is accepted, packed or unpacked."""
    retention_older_than_s: Seconds | None = None
    """Housekeeping deletes checkpoints older than this, except public ones and those in use."""
    retention_keep_last: NonNegativeInt = 3
    """The number of newest checkpoints of each kind that housekeeping keeps for each run."""
    retention_keep: Strings = ("*final*", "*best*")
    """Names of checkpoints that housekeeping keeps; * matches anything."""
    quota_runs: PositiveInt | None = None
    """Runs per key, unless ``mint keys quota`` sets another limit. Unloaded runs do not count."""
    quota_sessions: PositiveInt | None = None
    """Sessions per key, except those with runs. Silent ones are deleted after ``run_kept_s``."""
    quota_samplers: PositiveInt | None = None
    """Samplers per key in memory; idle ones are moved to disk."""
    quota_checkpoints: PositiveInt | None = None
    """Checkpoints per key."""
    quota_tokens_in_flight: PositiveInt | None = None
    """Prompt tokens plus ``max_tokens`` of a key's samples in progress."""
    quota_bytes: ByteSize | None = None
    """Total size of a key's checkpoints, such as ``10GB``."""

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()

    @field_validator("tls_key")
    @classmethod
    def _with_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if key is not None and info.data.get("tls_certificate") is None:
            raise PydanticCustomError("unused", "used together with tls_certificate")
        return key

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def uses_tls(self) -> bool:
        """Whether the service speaks HTTPS. The one that a script starts for itself does not."""
        return self.tls_certificate is not None and self.parent_pid is None

    @property
    def local_url(self) -> str:
        """The address of the service for programs on this machine."""
        everywhere = self.host in ("0.0.0.0", "::")
        return self.url("127.0.0.1" if everywhere else self.host, self.port)

    def url(self, host: str, port: int) -> str:
        """Return the address of the service at a host and port."""
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.uses_tls else 'http'}://{shown}:{port}"

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'mint.db'}"

    @property
    def logs(self) -> Path:
        return self.home / "logs"
