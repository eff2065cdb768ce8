"""Which service a client talks to, and with which key."""

from __future__ import annotations

import pytest
import tinker

import mint
from mint.client import resolve_service, wire_key, wire_path

HERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("argument", "variables", "url"),
    [
        ("http://a", {"MINT_BASE_URL": "http://b", "TINKER_BASE_URL": "http://c"}, "http://a"),
        (None, {"MINT_BASE_URL": "http://b", "TINKER_BASE_URL": "http://c"}, "http://b"),
        (None, {"TINKER_BASE_URL": "http://c"}, "http://c"),
        (None, {"MINT_BASE_URL": "", "TINKER_BASE_URL": "http://c"}, "http://c"),
    ],
)
def test_the_url_is_the_argument_then_mints_then_tinkers_variable(
    argument: str | None,
    variables: dict[str, str],
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resolve_service(argument, "key")[0] == url


@pytest.mark.parametrize(
    ("argument", "variables", "key"),
    [
        ("sk-a", {"MINT_API_KEY": "sk-b", "TINKER_API_KEY": "tml-c"}, "tml-sk-a"),
        (None, {"MINT_API_KEY": "sk-b", "TINKER_API_KEY": "tml-c"}, "tml-sk-b"),
        (None, {"TINKER_API_KEY": "tml-c"}, "tml-c"),
        (None, {"MINT_API_KEY": "tml-of-a-file\n"}, "tml-of-a-file"),
        (None, {}, "tml-local"),
    ],
)
def test_the_key_is_the_argument_then_mints_then_tinkers_variable(
    argument: str | None,
    variables: dict[str, str],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resolve_service(HERE, argument)[1] == key


def test_a_key_that_cannot_be_sent_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match="a character that no key has") as raised:
        resolve_service(HERE, "tml-cl\u00e9")
    assert "cl\u00e9" not in str(raised.value)


def test_keys_are_sent_in_the_form_that_the_protocol_wants() -> None:
    assert wire_key("secret") == "tml-secret"
    assert wire_key("tml-secret") == "tml-secret"
    assert wire_key("eyJhbGciOi") == "eyJhbGciOi"


def test_a_url_without_http_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"'localhost:8000' is not the URL .* http://HOST:PORT"):
        mint.ServiceClient(base_url="localhost:8000")


def test_a_remote_service_needs_a_key() -> None:
    with pytest.raises(tinker.TinkerError, match="MINT_API_KEY"):
        mint.ServiceClient(base_url="https://gpu.example.org")


def test_mint_paths_are_sent_as_tinker_paths() -> None:
    assert wire_path("mint://run/weights/a") == "tinker://run/weights/a"
    assert wire_path("tinker://run/weights/a") == "tinker://run/weights/a"
    assert wire_path("/tmp/mint://x") == "/tmp/mint://x"
