"""Tokenizers of base models, for clients without access to the hub."""

import asyncio
import io
import tarfile
from pathlib import Path

from fastapi import APIRouter, Response

from mint.catalog import TOKENIZER_FILES
from mint.service.api.routes.caller import ReadCaller, TheService
from mint.service.errors import ApiError, UserError

router = APIRouter()


@router.get("/mint/tokenizers/{name:path}")
async def get_tokenizer(service: TheService, _: ReadCaller, name: str) -> Response:
    """Return a ``.tar.gz`` of the model's tokenizer files and ``config.json``."""
    try:
        folder = await service.engines.locate(name)
    except UserError as error:
        raise ApiError(404, str(error)) from error
    packed = await asyncio.to_thread(_pack, folder)
    return Response(packed, media_type="application/gzip")


def _pack(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("config.json", *TOKENIZER_FILES):
            if (file := folder / name).is_file():
                archive.add(file.resolve(), arcname=name)
    return packed.getvalue()
