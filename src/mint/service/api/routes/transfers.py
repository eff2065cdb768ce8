"""Checkpoints as files: signed download links, uploads, interpolation."""

import asyncio
import os
import shutil
from email.utils import format_datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse

from mint.service.api.routes.caller import JsonRoute, ReadCaller, TheService, TrainCaller
from mint.service.api.routes.weights import ONE, Readable, describe_checkpoint
from mint.service.api.uploads import receive_archive
from mint.service.checkpoints.archives import pack
from mint.service.checkpoints.links import Link
from mint.service.checkpoints.storage import CheckpointPath
from mint.service.errors import ApiError
from mint.service.wire import requests

router = APIRouter(route_class=JsonRoute)


@router.get(f"{ONE}/archive", status_code=302)
def archive(service: TheService, caller: ReadCaller, request: Request, row: Readable) -> Response:
    """Redirect to a signed link to the checkpoint as a ``.tar.gz``."""
    link = service.links.make(row, caller.user)
    url = _make_url(service, request, link, f"{row.name}.tar.gz")
    return RedirectResponse(url, 302, {"Expires": format_datetime(link.expires_at, usegmt=True)})


@router.get(f"{ONE}/external_weights_urls")
def external_weights_urls(
    service: TheService, caller: ReadCaller, request: Request, row: Readable
) -> dict[str, Any]:
    """Return a signed link to each file of a checkpoint."""
    names = sorted(file.name for file in service.checkpoints.folder(row).iterdir())
    links = {name: service.links.make(row, caller.user, name) for name in names}
    return {
        "urls": {name: _make_url(service, request, link, name) for name, link in links.items()},
        "expires": min(link.expires_at for link in links.values()).isoformat(),
    }


def _make_url(service: TheService, request: Request, link: Link, name: str) -> str:
    return str(request.url_for("download", token=service.links.token(link), name=name))


@router.get("/mint/downloads/{token}/{name}")
def download(service: TheService, token: str, name: str) -> Response:
    """Return the file of a signed link, which needs no key. The name is not used."""
    link = service.links.open(token)
    path = CheckpointPath.parse(link.path)
    row = service.checkpoints.find(path, link.user)
    if row is None or row.version != link.version:
        raise ApiError(
            404, f"{path.uri} was deleted, overwritten or made private. Request a new link."
        )
    if link.file is None:
        files = service.checkpoints.open_files(row)
        return StreamingResponse(pack(files), media_type="application/gzip")
    folder = service.checkpoints.folder(row)
    try:
        found = os.stat(folder / link.file)
    except OSError as error:
        raise ApiError(404, f"{path.uri} has no file {link.file}.") from error
    return FileResponse(folder / link.file, stat_result=found, filename=link.file)


@router.post("/checkpoints/upload")
async def upload(service: TheService, caller: TrainCaller, request: Request) -> dict[str, Any]:
    """Create a checkpoint from a ``.tar.gz`` of another service, in the form field ``file``.

    The fields ``name`` and ``base_model`` override what the archive says.
    """
    inbox = await asyncio.to_thread(service.transfers.inbox)
    try:
        check = await asyncio.to_thread(service.transfers.upload_check, caller)
        archive, texts = await receive_archive(inbox, request.headers, request.stream(), check)
        row = await service.transfers.take_in(
            caller, archive, texts.get("name"), texts.get("base_model")
        )
    finally:
        await asyncio.to_thread(shutil.rmtree, inbox, ignore_errors=True)
    return {**describe_checkpoint(row), "checkpoint_id": row.uri, "path": row.uri}


@router.post("/mint/checkpoints/interpolate")
async def interpolate(
    service: TheService, caller: TrainCaller, body: requests.Interpolate
) -> dict[str, str]:
    """Create a sampler checkpoint that is the weighted sum of others."""
    return {"request_id": await service.transfers.interpolate(caller, body)}
