"""HTTPS: by a certificate from a file, or behind a proxy."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from mint.commands.shared.output import Mistake
from mint.commands.shared.remote import Remote
from mint.rl.runtime.connection import NoAnswer, ServiceMonitor
from mint.service.admin.settings import Settings
from tests.service_fixture import LiveService, RawClient

Start = Callable[..., LiveService]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a certificate for this machine, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files


def download_link(http: httpx.Client, base_url: str, **headers: str) -> str:
    """The signed link to a new checkpoint of a new run."""
    raw = RawClient(base_url)
    raw.http = http
    run = raw.run()
    raw.result(raw.operate("save_weights_for_sampler", run, 1, path="p"))
    path = f"/training_runs/{run}/checkpoints/sampler_weights/p/archive"
    return raw.http.get(path, headers=headers).headers["location"]


def test_a_service_with_a_certificate_speaks_https(
    own_service: Start, certificate: tuple[Path, Path]
) -> None:
    service = own_service(tls_certificate=certificate[0], tls_key=certificate[1])
    assert service.base_url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=f"{service.base_url}/api/v1", verify=trusted, timeout=60) as http:
        link = download_link(http, service.base_url)
        assert link.startswith(f"{service.base_url}/")
        assert http.get(link).status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{service.base_url}/healthz")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://127.0.0.1:{service.port}/healthz")


def test_commands_and_runs_say_at_once_that_a_certificate_is_not_trusted(
    own_service: Start, certificate: tuple[Path, Path]
) -> None:
    service = own_service(tls_certificate=certificate[0], tls_key=certificate[1])
    with pytest.raises(Mistake, match=r"is not trusted: .*self.signed.* set SSL_CERT_FILE"):
        Remote(service.base_url).get("/api/v1/healthz")
    client = SimpleNamespace(_base_url=service.base_url)  # the monitor asks it for nothing else
    with pytest.raises(NoAnswer, match=r"is not trusted: .*self.signed.* set SSL_CERT_FILE"):
        asyncio.run(ServiceMonitor(client, 3600.0).reach())  # type: ignore[arg-type]


def test_links_behind_a_proxy_are_https(raw: RawClient) -> None:
    link = download_link(raw.http, raw.base_url, **{"X-Forwarded-Proto": "https"})
    assert link.startswith("https://")


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "certificate.pem"
    if content is not None:
        file.write_text(content)
    (tmp_path / "config.yaml").write_text("port: 0\ntls_certificate: certificate.pem\n")
    command = [sys.executable, "-m", "mint.cli", "serve", "--home", str(tmp_path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert f"the certificate {file} cannot be used" in ended.stderr


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="used together with tls_certificate"):
        Settings(tls_key=Path("key.pem"))


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"port": 8000}, "http://127.0.0.1:8000"),
        ({"port": 1, "host": "0.0.0.0", "tls_certificate": "c"}, "https://127.0.0.1:1"),
        ({"port": 1, "host": "::1"}, "http://[::1]:1"),
        ({"port": 1, "tls_certificate": "c", "parent_pid": 1}, "http://127.0.0.1:1"),
    ],
)
def test_programs_on_this_machine_know_its_address(settings: dict[str, str], url: str) -> None:
    assert Settings(**settings).local_url == url
