"""Who is asking: API keys, and the signed tokens that MinT clients exchange them for."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from .errors import ApiError
from .settings import Settings
from .store import ApiKey, Store

LOCAL_USER = "local"
TOKEN_LIFE_S = 3600
_RELOAD_KEYS_S = 2.0


def create_key(store: Store, name: str, user: str, prefix: str = "tml-") -> str:
    """Make a key and return it; only its hash is kept, so it can be shown this once.

    ``tml-`` keys suit every client; MinT's own client also takes ``sk-`` keys.
    """
    key = f"{prefix}{secrets.token_urlsafe(24)}"
    store.add(ApiKey(hash=_hash_of(key), name=name, user=user))
    return key


def _hash_of(key: str) -> str:
    return hashlib.sha256(key.removeprefix("tml-").encode()).hexdigest()


class Auth:
    """Turns the ``X-API-Key`` header into a user, or refuses with 401."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self.secret = _secret_of(settings.home / "secret")
        self._only_key = _hash_of(settings.api_key) if settings.api_key else None
        self._keys: dict[str, str] = {}
        self._had_keys = False  # once there was a key, the service is never open to all again
        self._loaded_at = float("-inf")

    def check_start(self) -> None:
        """Refuse to serve other machines without a key."""
        if self._settings.is_loopback or self._only_key or self._store.active_keys():
            return
        raise SystemExit(
            f"mint serve: {self._settings.host} can be reached from other machines and no API key "
            "exists, so anybody could use this service.\n"
            f"Create one first:  mint keys create --home {self._settings.home}\n"
            "or serve this machine only:  mint serve --host 127.0.0.1"
        )

    async def user_of(self, presented: str | None) -> str:
        """The user of a key or token.

        Raises ApiError 401 with what to do when it is not accepted.
        """
        key_hash = self._hash_in(presented) if _is_token(presented) else _hash_of(presented or "")
        if self._only_key is not None:
            if hmac.compare_digest(key_hash, self._only_key):
                return LOCAL_USER
            raise _refused()
        keys = await self._active_keys()
        if not self._had_keys and self._settings.is_loopback:
            return LOCAL_USER
        user = keys.get(key_hash)
        if user is None:
            raise _refused()
        return user

    async def key_of(self, presented: str | None) -> ApiKey | None:
        """What the store knows of an accepted key; None when it is not one of its own."""
        await self.user_of(presented)
        key_hash = self._hash_in(presented) if _is_token(presented) else _hash_of(presented or "")
        keys = await asyncio.to_thread(self._store.all_keys)
        return next((key for key in keys if key.hash == key_hash), None)

    async def _active_keys(self) -> dict[str, str]:
        if time.monotonic() - self._loaded_at > _RELOAD_KEYS_S:
            self._keys = await asyncio.to_thread(self._store.active_keys)
            self._had_keys = bool(self._keys) or await asyncio.to_thread(self._store.has_keys)
            self._loaded_at = time.monotonic()
        return self._keys

    # ---- tokens -------------------------------------------------------------------------------

    async def token_for(self, presented: str | None) -> str:
        """A signed token that stands for the presented key for an hour."""
        user = await self.user_of(presented)
        key_hash = self._hash_in(presented) if _is_token(presented) else _hash_of(presented or "")
        issued = int(time.time())
        claims = {
            "sub": user,
            "org_id": "mint",
            "key": key_hash,
            "iat": issued,
            "exp": issued + TOKEN_LIFE_S,
        }
        signed = f"{_encode({'alg': 'HS256', 'typ': 'JWT'})}.{_encode(claims)}"
        return f"{signed}.{self._signature(signed)}"

    def _hash_in(self, token: str | None) -> str:
        signed, _, signature = (token or "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(signed).encode()):
            raise _refused()
        claims = _decode(signed.partition(".")[2])
        if claims["exp"] < time.time():
            raise ApiError(401, "The token has expired. Create the client again.")
        return str(claims["key"])

    def _signature(self, signed: str) -> str:
        return _base64(hmac.digest(self.secret, signed.encode(), "sha256"))


def _refused() -> ApiError:
    return ApiError(
        401,
        "The API key is not accepted by this service. Pass a key that was made with "
        "`mint keys create`, as api_key= or in MINT_API_KEY (TINKER_API_KEY).",
    )


def _is_token(presented: str | None) -> bool:
    return presented is not None and presented.startswith("eyJ") and presented.count(".") == 2


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encode(claims: dict[str, Any]) -> str:
    return _base64(json.dumps(claims, separators=(",", ":")).encode())


def _decode(text: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return claims


def _secret_of(path: Path) -> bytes:
    """The signing secret of this home folder, made once, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_bytes()
