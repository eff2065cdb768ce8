"""Keys and tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from datetime import timedelta
from pathlib import Path

import pytest

from mint.service.access.auth import Auth, create_key
from mint.service.access.scopes import Caller, Scope
from mint.service.admin.settings import Settings
from mint.service.checkpoints.links import Link, Links
from mint.service.errors import ApiError, UserError
from mint.service.store.database import Store, now
from tests.reliability.disk import Disk


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate()
    return store


def auth(store: Store, home: Path, **settings: object) -> Auth:
    return Auth(Settings(home=home, **settings), store)  # type: ignore[arg-type]


def user(auth: Auth, key: str | None) -> str:
    return asyncio.run(auth.caller(key)).user


def refused(auth: Auth, key: str | None) -> str:
    with pytest.raises(ApiError) as error:
        user(auth, key)
    assert error.value.status_code == 401
    return error.value.detail


def test_on_loopback_without_keys_every_caller_is_the_local_user(
    store: Store, tmp_path: Path
) -> None:
    for key in ("tml-anything", "sk-x", None):
        assert user(auth(store, tmp_path), key) == "local"


def test_once_there_is_a_key_only_keys_are_accepted(store: Store, tmp_path: Path) -> None:
    ada, eve = create_key(store, "laptop", "ada"), create_key(store, "desk", "eve")
    service = auth(store, tmp_path)
    assert user(service, ada) == "ada"
    assert user(service, eve) == "eve"
    assert user(service, ada.removeprefix("tml-")) == "ada"
    assert "mint keys create" in refused(service, "tml-guess")
    refused(service, None)


def test_sk_keys_are_keys_too(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "mint", "ada", prefix="sk-")
    service = auth(store, tmp_path)
    assert key.startswith("sk-")
    assert user(service, key) == user(service, f"tml-{key}") == "ada"
    assert user(service, asyncio.run(service.token_for(key))) == "ada"


def test_keys_are_stored_as_hashes(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "laptop", "ada")
    for file in tmp_path.iterdir():
        assert key.removeprefix("tml-").encode() not in file.read_bytes()


def test_an_embedded_service_accepts_its_own_key_only(store: Store, tmp_path: Path) -> None:
    created = create_key(store, "laptop", "ada")
    service = auth(store, tmp_path, api_key="tml-embedded")
    assert user(service, "tml-embedded") == "local"
    refused(service, created)
    refused(service, None)


def test_beyond_loopback_a_key_must_exist_before_the_start(store: Store, tmp_path: Path) -> None:
    service = auth(store, tmp_path, host="0.0.0.0")
    with pytest.raises(SystemExit, match="mint keys create"):
        service.check_start()
    create_key(store, "laptop", "ada")
    service.check_start()
    refused(service, "tml-anything")


def test_a_token_replaces_its_key(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "laptop", "ada")
    service = auth(store, tmp_path)
    token = asyncio.run(service.token_for(key))
    assert user(service, token) == "ada"
    assert user(auth(store, tmp_path), token) == "ada", "another service with the same home"
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == "ada"
    assert isinstance(claims["exp"], int)


def test_a_forged_or_expired_token_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = auth(store, tmp_path)
    header, claims, signature = asyncio.run(service.token_for("sk-any")).split(".")
    forged = base64.urlsafe_b64encode(b'{"sub":"root","key":"","exp":9999999999}').decode()
    refused(service, f"{header}.{forged.rstrip('=')}.{signature}")
    refused(service, f"{header}.{claims}.{'A' * len(signature)}")
    refused(service, f"{header}.{claims}.")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    refused(service, f"{unsigned}.{claims}.")
    refused(service, f"eyJ.{claims}.{signature}")
    link = Links(service.secret, 60).token(Link("tinker://a", "1", None, 2**31, "local"))
    refused(service, link)
    monkeypatch.setattr("mint.service.access.auth.TOKEN_LIFE_S", -10)
    assert "expired" in refused(service, asyncio.run(service.token_for("sk-any")))


def test_the_signing_secret_is_private(store: Store, tmp_path: Path) -> None:
    auth(store, tmp_path)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("left", [b"", b"half of it"])
def test_a_signing_secret_that_was_cut_short_is_refused(
    store: Store, tmp_path: Path, left: bytes
) -> None:
    """With an empty secret everyone could sign tokens and links."""
    (tmp_path / "secret").write_bytes(left)
    with pytest.raises(UserError, match="Delete the file"):
        auth(store, tmp_path)


def test_a_signing_secret_survives_a_power_failure(store: Store, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "home")
    disk.root.mkdir()
    with disk.failing():
        secret = auth(store, disk.root).secret
    assert disk.synced[(disk.root / "secret").stat().st_ino] == secret


# ---- scopes and expiry ---------------------------------------------------------------------------


def test_a_key_made_before_scopes_keeps_all_rights(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate("0002")
    with store._engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into api_keys (hash, name, user, created_at) values (?, 'old', 'ada', ?)",
            (hashlib.sha256(b"secret").hexdigest(), "2026-01-01 00:00:00"),
        )
    store.migrate()
    caller = asyncio.run(auth(store, tmp_path).caller("tml-secret"))
    assert caller == Caller("ada", "old", Scope.ADMIN)


def test_an_expired_key_is_refused_with_the_reason(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = create_key(store, "laptop", "ada", expires_at=now() + timedelta(days=30))
    service = auth(store, tmp_path)
    token = asyncio.run(service.token_for(key))
    assert user(service, key) == user(service, token) == "ada"
    monkeypatch.setattr("mint.service.access.auth.now", lambda: now() + timedelta(days=31))
    assert "'laptop' expired on" in refused(service, key)
    assert "'laptop' expired on" in refused(service, token)


def test_beyond_loopback_an_expired_key_does_not_count(store: Store, tmp_path: Path) -> None:
    create_key(store, "laptop", "ada", expires_at=now() - timedelta(seconds=1))
    with pytest.raises(SystemExit, match="mint keys create"):
        auth(store, tmp_path, host="0.0.0.0").check_start()


def test_a_revoked_key_is_refused_with_the_reason(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "laptop", "ada")
    store.revoke_key("laptop")
    assert "'laptop' was revoked" in refused(auth(store, tmp_path), key)


def test_the_last_use_of_a_key_is_kept(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "laptop", "ada")
    create_key(store, "desk", "ada")
    service = auth(store, tmp_path)

    async def use() -> None:
        await service.caller(key)
        await store.save_uses()

    asyncio.run(use())
    assert [k.last_used_at is not None for k in store.all_keys()] == [True, False]
