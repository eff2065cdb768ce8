"""Signed links: each allows the download of one file for a while, without a key."""

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import jwt

from mint.service.errors import ApiError
from mint.service.store.database import CheckpointRow

_PURPOSE = "mint download link"


@dataclass(frozen=True)
class Link:
    """One file of one version of a checkpoint; without a file, all of them as an archive."""

    path: str
    version: str
    file: str | None
    expires: int
    user: str

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.expires, UTC)


class Links:
    """Creates and checks links with the secret of this service."""

    def __init__(self, secret: bytes, kept_s: float) -> None:
        self._secret = secret
        self._kept_s = kept_s

    def make(self, row: CheckpointRow, user: str, file: str | None = None) -> Link:
        """Create a link; it works only while ``user`` may read the checkpoint."""
        expires = int(time.time() + self._kept_s)
        return Link(row.uri, row.version, file, expires, user)

    def token(self, link: Link) -> str:
        """Return the link as a string for a URL."""
        claims = {"link": asdict(link), "exp": link.expires, "aud": _PURPOSE}
        return jwt.encode(claims, self._secret, "HS256")

    def open(self, token: str) -> Link:
        """Return the link of a token. Raises ApiError 403 if it was forged or has expired."""
        try:
            claims = jwt.decode(token, self._secret, ["HS256"], audience=_PURPOSE)
            return Link(**claims["link"])
        except jwt.ExpiredSignatureError:
            raise ApiError(403, "The link has expired. Request a new one.") from None
        except (jwt.InvalidTokenError, KeyError, TypeError) as error:
            why = "The link was not issued by this service. Request a new one."
            raise ApiError(403, why) from error
