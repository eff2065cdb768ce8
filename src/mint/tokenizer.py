"""A base model's tokenizer, fetched from the service that serves the model.

The script's machine needs neither the weights nor the hub: the service sends the tokenizer's files,
and they are cached in a folder named after the hash of their content.
"""

import copy
import hashlib
import inspect
import io
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import tinker
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
from tinker.lib.internal_client_holder import InternalClientHolder

from mint.catalog import default_cache

MAX_BYTES = 256 * 1024 * 1024


def fetch_tokenizer(holder: InternalClientHolder, model: str) -> Any | None:
    """Return the service's tokenizer of ``model``; None if it is not a mint service."""

    async def get() -> bytes:
        with holder.aclient(ClientConnectionPoolType.SESSION) as client:
            path = f"/api/v1/mint/tokenizers/{quote(model, safe='')}"
            return (await client.get(path, cast_to=httpx.Response)).content

    try:
        archive = holder.run_coroutine_threadsafe(get()).result()
    except tinker.NotFoundError:
        return None
    return _load(_unpacked(archive))


def _unpacked(archive: bytes) -> Path:
    folder = default_cache() / "tokenizers" / hashlib.sha256(archive).hexdigest()[:32]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / folder.name
        _unpack(archive, made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    return folder


def _unpack(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        members = [member for member in tar if member.isfile()]
        if sum(member.size for member in members) > MAX_BYTES:
            raise ValueError(f"The service sent tokenizer files of more than {MAX_BYTES} bytes.")
        for member in members:  # Debian 12's Python has no filters for extract()
            target = folder / member.name
            if not target.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"The service sent a tokenizer file named {member.name!r}.")
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None, "it is a file"
            target.write_bytes(content.read())


@cache
def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return plain_tokenizer(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))


def plain_tokenizer(tokenizer: Any) -> Any:
    """Return a copy whose ``apply_chat_template`` returns token ids, as scripts expect.

    Transformers 5 returns a mapping unless ``return_dict=False``; its ``list()`` are its keys.
    A ``return_dict`` that is passed has its usual meaning.
    """
    original = getattr(tokenizer, "apply_chat_template", None)
    if original is None or isinstance(original, _TokenIds):
        return tokenizer
    plain = copy.copy(tokenizer)
    plain.apply_chat_template = _TokenIds(plain)
    return plain


class _TokenIds:
    """The ``apply_chat_template`` of a plain tokenizer. A class, so that it can be pickled."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.__doc__ = type(tokenizer).apply_chat_template.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = type(self._tokenizer).apply_chat_template
        signature = _signature(function)
        given = signature.bind(self._tokenizer, *args, **kwargs).arguments
        needs_dict = given.get("return_assistant_tokens_mask")  # the mask comes in a dict only
        if "return_dict" in signature.parameters and "return_dict" not in given and not needs_dict:
            kwargs["return_dict"] = False
        return function(self._tokenizer, *args, **kwargs)


_signature = cache(inspect.signature)  # it takes longer than rendering a message
