"""Authentication: API keys, and the signed tokens that MinT clients exchange them for."""

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import jwt

from mint.service.access.quotas import Quota
from mint.service.access.scopes import Caller, Scope
from mint.service.admin.settings import Settings
from mint.service.errors import ApiError, UserError, database_failed
from mint.service.store.database import ApiKey, Store, now

LOCAL_USER = "local"
TOKEN_LIFE_S = 3600
_RELOAD_KEYS_S = 2.0
_KEYS_WITHIN_S = 10.0
"""How long a request waits for a database that hangs."""
_SECRET_BYTES = 32


def create_key(
    store: Store,
    name: str,
    user: str,
    prefix: str = "tml-",
    scope: Scope = Scope.TRAIN,
    expires_at: datetime | None = None,
    quota: Mapping[str, int | None] | None = None,
) -> str:
    """Create a key and return it; only its hash is stored. MinT's client takes ``sk-`` keys."""
    key = f"{prefix}{secrets.token_urlsafe(24)}"
    row = ApiKey(hash=_hash_key(key), name=name, user=user, scope=scope.label)
    row.quota, row.expires_at = dict(quota or {}), expires_at
    store.add(row)
    return key


def _hash_key(key: str) -> str:
    return hashlib.sha256(key.removeprefix("tml-").encode()).hexdigest()


class Auth:
    """Turns the ``X-API-Key`` header into a caller, or refuses with 401."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self.secret = _read_secret(settings.home / "secret")
        self._only_key = _hash_key(settings.api_key) if settings.api_key else None
        # once there is a key, even a revoked one, keys are required
        self._keys: dict[str, ApiKey] = {}
        self._quotas: dict[str, Quota] = {}
        self._loaded_at = float("-inf")
        self._loading: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mint-keys")

    def check_start(self) -> None:
        """Refuse to serve other machines without a key."""
        if self._settings.is_loopback or self._only_key or self._store.active_keys():
            return
        raise SystemExit(
            f"mint serve: {self._settings.host} is reachable from other machines and no API key "
            "exists, so anyone could use this service.\n"
            f"Create one first:  mint keys create --home {shlex.quote(str(self._settings.home))}\n"
            "or serve this machine only:  mint serve --host 127.0.0.1"
        )

    async def caller(self, presented: str | None) -> Caller:
        """Return the caller of a key or token, and record its use. Raises ApiError 401."""
        key_hash = self._find_hash(presented)
        if self._only_key is not None:
            if hmac.compare_digest(key_hash, self._only_key):
                return Caller(LOCAL_USER, LOCAL_USER)
            raise _refused()
        await self._load_if_due()
        if not self._keys and self._settings.is_loopback:
            return Caller(LOCAL_USER, LOCAL_USER)
        if (key := self._keys.get(key_hash)) is None:
            raise _refused()
        if key.revoked_at is not None:
            raise _refused(f"The API key {key.name!r} was revoked.")
        if key.expires_at is not None and key.expires_at <= now():
            expired = f"{key.expires_at:%Y-%m-%d %H:%M} UTC"
            raise _refused(f"The API key {key.name!r} expired on {expired}.")
        self._store.note_use(ApiKey, key_hash)
        return Caller(key.user, key.name, Scope.parse(key.scope))

    def find_key(self, presented: str | None) -> ApiKey | None:
        """Return the row of a key that was accepted; None if it is not in the store."""
        return self._keys.get(self._find_hash(presented))

    def _find_hash(self, presented: str | None) -> str:
        """Return the hash of a key, or of the key that a token replaces."""
        key = presented or ""
        if not (key.startswith("eyJ") and key.count(".") == 2):
            return _hash_key(key)
        try:
            claims = jwt.decode(key, self.secret, ["HS256"], {"require": ["exp", "key"]})
        except jwt.ExpiredSignatureError:
            raise ApiError(401, "The token has expired. Create the client again.") from None
        except jwt.InvalidTokenError:
            raise _refused() from None
        return str(claims["key"])

    async def _load_if_due(self) -> None:
        """Read all keys every two seconds, once for all requests that wait."""
        if time.monotonic() - self._loaded_at <= _RELOAD_KEYS_S:
            return
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load())
        try:
            await asyncio.wait_for(asyncio.shield(self._loading), _KEYS_WITHIN_S)
        except TimeoutError:
            raise ApiError(503, database_failed("it does not answer")) from None

    async def _load(self) -> None:
        """Read the keys in a thread of their own: a heartbeat needs them while others are busy."""
        loop = asyncio.get_running_loop()
        keys = await loop.run_in_executor(self._thread, self._store.all_keys)
        self._keys = {key.hash: key for key in keys}
        self._quotas = {key.name: Quota.of(self._settings, key.quota) for key in keys}
        self._loaded_at = time.monotonic()

    def find_quota(self, key: str) -> Quota:
        """Return the limits of a key, by its name."""
        return self._quotas.get(key) or Quota.of(self._settings, {})

    async def token_for(self, presented: str | None) -> str:
        """Return a signed token that replaces the presented key for an hour."""
        issued = int(time.time())
        claims = {
            "sub": (await self.caller(presented)).user,
            "org_id": "mint",
            "key": self._find_hash(presented),
            "iat": issued,
            "exp": issued + TOKEN_LIFE_S,
        }
        return jwt.encode(claims, self.secret, "HS256")


def _refused(why: str = "The API key is not accepted by this service.") -> ApiError:
    return ApiError(
        401,
        f"{why} Pass a key from `mint keys create`, as api_key= or in MINT_API_KEY "
        "(TINKER_API_KEY).",
    )


def _read_secret(path: Path) -> bytes:
    """Return the signing secret of this home folder, created once and readable by its owner.

    Raises UserError for a file that was cut short: everyone could sign with an empty secret.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # readable by its owner only
        draft.write(secrets.token_bytes(_SECRET_BYTES))
        draft.flush()
        os.fsync(draft.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft.name, path)
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise UserError(
            f"The signing secret {path} has {len(secret)} bytes instead of {_SECRET_BYTES}, so it "
            "was damaged. Delete the file and start again: a new one is created, and clients "
            "request new tokens and download links. Check the disk."
        )
    return secret
