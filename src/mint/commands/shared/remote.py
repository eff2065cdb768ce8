"""The service that commands talk to, over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import httpx
import typer

from mint.commands.shared.options import load_settings
from mint.commands.shared.output import Mistake
from mint.embedded import bypass_proxies, embedded_service, named_key, named_url
from mint.rl.runtime.connection import TRUST_IT

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The service. Default: MINT_BASE_URL, TINKER_BASE_URL, or this machine's. "
        "The key is read from MINT_API_KEY or TINKER_API_KEY.",
    ),
]
TIMEOUT = httpx.Timeout(60.0, connect=5.0, read=None)


class Remote:
    """A running service. Its error responses are raised as :class:`Mistake`."""

    def __init__(self, url: str | None, key: str | None = None) -> None:
        self.url = (named_url(url) or load_settings(None).local_url).rstrip("/")
        headers = {"X-API-Key": sent} if (sent := named_key(key)) else {}
        try:
            bypass_proxies(self.url)
            self.http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT)
        except (httpx.InvalidURL, ValueError) as error:
            raise Mistake(f"{self.url} is not a URL: {error}. Write http://HOST:PORT") from error

    @classmethod
    def embedded(cls, home: Path | None = None) -> Self:
        """Start the service of a home folder for the duration of this command."""
        service = embedded_service(home)
        return cls(service.url, service.key)

    @classmethod
    def running_or_embedded(cls, url: str | None) -> Self:
        """Use the service that was named or that runs on this machine, or else start one."""
        remote = cls(url)
        return remote if named_url(url) or remote.answers() else cls.embedded()

    def answers(self) -> bool:
        """Return whether anything listens at the URL."""
        try:
            self.http.get("/api/v1/healthz")
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return False
        return True

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self.request("GET", path, params=query)

    def request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Send a request, and return the JSON of the response."""
        with self.failures():
            answer = self.http.request(method, path, **options)
            self.check(answer)
            value: dict[str, Any] = answer.json() if answer.content else {}
            return value

    def check(self, answer: httpx.Response) -> None:
        """Raise a Mistake for an error response."""
        if answer.status_code >= 400:
            answer.read()
            raise Mistake(_reason(answer))

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Turn connection errors into messages that say what to type."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if "CERTIFICATE" in str(error):
                raise Mistake(f"{self.url} is not trusted: {error}. {TRUST_IT}") from None
            raise Mistake(
                f"No service is running at {self.url}.\n"
                "Start one:           mint serve\n"
                "or name another:     --url http://HOST:PORT, or MINT_BASE_URL"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Mistake(f"The request to {self.url} failed: {str(error).rstrip('.')}.") from error
        except (ValueError, KeyError) as error:
            raise Mistake(
                f"{self.url} is not a mint service: its response could not be parsed."
            ) from error


def _reason(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        text = body["error"]["message"] if "error" in body else body["detail"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}: {answer.text[:300]}"
    if answer.status_code >= 500:
        return f"The service failed ({answer.status_code}): {text}"
    return str(text)
