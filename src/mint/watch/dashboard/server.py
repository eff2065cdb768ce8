"""The dashboard's server: a stateless reader of run directories.

Everything is GET. The page and its parts are under ``/``, the data under ``/api/``. Answers to
questions that grow with the run (metrics, events, searches) are increments.
"""

import asyncio
import io
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mint.watch.dashboard.access import Access
from mint.watch.dashboard.assets import load_assets
from mint.watch.dashboard.curves import MOST_POINTS, between, columns, read_step
from mint.watch.dashboard.filters import BadFilter, Filter
from mint.watch.dashboard.library import Library, RunPlace, UnknownRun
from mint.watch.dashboard.overview import Tables, flat, overview, read_config, stop_strings
from mint.watch.dashboard.query import Place, QueryFailed, Rollouts
from mint.watch.dashboard.tail import number

Status = Callable[[Request], Awaitable[dict[str, Any]]]
Permission = Callable[[Request], Awaitable[bool]]
_AT_ONCE = 4
_MOST_EVENTS = 5_000


@dataclass
class Watch:
    """The state of the routes: the runs, and the service that the dashboard is attached to."""

    library: Library
    demo: bool = False
    service: Status | None = None
    may_read: Permission | None = None
    tables: Tables = field(default_factory=Tables)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def place(self, request: Request) -> RunPlace:
        """Return the run that an address names."""
        if self.may_read is not None and not await self.may_read(request):
            raise UnknownRun("Run directories are shown on the service's own machine only.")
        return await asyncio.to_thread(self.library.get, request.path_params["run"])

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a reading function in a thread, a few at a time."""
        async with self.turns:
            return await asyncio.to_thread(function, *arguments)


class PlainJson(JSONResponse):
    """JSON in which numbers that are not finite are null."""

    def render(self, content: Any) -> bytes:
        try:
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError:
            text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")


class Refused(Exception):
    """A request that the service behind the dashboard refuses."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def create_app(watch: Watch, key: str | None = None, hosts: Iterable[str] | None = ()) -> Starlette:
    """Put the dashboard together. ``key`` and ``hosts`` are those of :class:`Access`."""
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/assets/{name:path}", _asset),
            Route("/api/about", _about),
            Route("/api/service", _service),
            Route("/api/runs", _runs),
            Route("/api/runs/{run}", _run),
            Route("/api/runs/{run}/metrics", _metrics),
            Route("/api/runs/{run}/events", _events),
            Route("/api/runs/{run}/steps/{step:int}", _step),
            Route("/api/runs/{run}/samples/{step:int}/{group:int}/{index:int}", _sample),
            Route("/api/runs/{run}/prompts", _prompts),
            Route("/api/runs/{run}/prompt", _prompt),
            Route("/api/runs/{run}/search", _search),
            Route("/api/runs/{run}/export", _export),
        ],
        middleware=[Middleware(Access, key=key, hosts=hosts)],
        exception_handlers={
            UnknownRun: _error(404),
            BadFilter: _error(400),
            QueryFailed: _error(422),
            Refused: _error(403),
        },
    )
    app.state.watch = watch
    app.state.assets = load_assets()
    return app


def _error(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_: Request, error: Exception) -> Response:
        text = str(error.args[0]) if error.args else "The request could not be answered."
        return JSONResponse({"detail": text}, getattr(error, "status", status))

    return answer


def _watch(request: Request) -> Watch:
    watch: Watch = request.app.state.watch
    return watch


# ---- the page ----


async def _page(request: Request) -> Response:
    return _asset_named(request, "index.html")


async def _asset(request: Request) -> Response:
    return _asset_named(request, request.path_params["name"])


def _asset_named(request: Request, name: str) -> Response:
    asset = request.app.state.assets.get(name)
    if asset is None:
        return JSONResponse({"detail": "There is no such file."}, 404)
    headers = {"cache-control": "no-cache", "etag": asset.tag}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.kind, headers=headers)


# ---- runs ----


async def _about(request: Request) -> Response:
    watch = _watch(request)
    return PlainJson({"service": watch.service is not None, "demo": watch.demo, "bundle": False})


async def _service(request: Request) -> Response:
    watch = _watch(request)
    if watch.service is None:
        return JSONResponse({"detail": "This dashboard is not attached to a service."}, 404)
    return PlainJson(await watch.service(request))


async def _runs(request: Request) -> Response:
    watch = _watch(request)
    if watch.may_read is not None and not await watch.may_read(request):
        return PlainJson({"runs": [], "hidden": True})
    return PlainJson({"runs": await watch.work(list_runs, watch.library, watch.tables)})


def list_runs(library: Library, tables: Tables) -> list[dict[str, Any]]:
    """Describe all runs, the one that was written to last first."""
    found = [tables.overview(place) for place in library.runs()]
    return sorted(found, key=lambda run: (-(run["updated"] or 0.0), run["name"]))


async def _run(request: Request) -> Response:
    watch = _watch(request)
    place = await watch.place(request)
    return PlainJson(await watch.work(describe, place, watch.tables))


def describe(place: RunPlace, tables: Tables) -> dict[str, Any]:
    """Describe one run with its settings."""
    settings, text = read_config(place)
    rollouts, known = Rollouts(place), tables.of(place)
    return {
        **overview(place, known),
        "config": flat(settings),
        "config_text": text,
        "stop": stop_strings(settings),
        "rollouts": rollouts.steps(),
        "components": known.components(rollouts),
    }


async def _metrics(request: Request) -> Response:
    watch = _watch(request)
    place = await watch.place(request)
    given = request.query_params
    answer = await watch.work(metrics_since, place, watch.tables, dict(given))
    return PlainJson(answer)


def metrics_since(place: RunPlace, tables: Tables, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the metrics of a range of steps, or those that came after the ``cursor``.

    A cursor is ``generation:rows``; when the table was cut since (a resumed run), the answer is
    the whole table with ``reset``.
    """
    known_tables = tables.of(place)
    table = known_tables.metrics
    generation, _, count = given.get("cursor", "").partition(":")
    first, last = _integer(given, "from"), _integer(given, "to")
    points = max(10, min(_integer(given, "points") or MOST_POINTS, MOST_POINTS))
    known = int(count) if count.isdigit() and len(count) < 12 else 0
    is_increment = generation == str(table.generation) and known <= len(table.rows)
    if first is None and last is None and (not is_increment or known == 0):
        found = known_tables.curves(points)
    else:
        rows = table.rows[known:] if is_increment else table.rows
        found = columns(between(rows, first, last), points)
    cursor = f"{table.generation}:{len(table.rows)}"
    return {**found, "cursor": cursor, "reset": not is_increment, "total": len(table.rows)}


async def _events(request: Request) -> Response:
    watch = _watch(request)
    place = await watch.place(request)
    return PlainJson(
        await watch.work(events_since, place, watch.tables, dict(request.query_params))
    )


def events_since(place: RunPlace, tables: Tables, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the events after a cursor, as :func:`metrics_since` does; the last ones if many."""
    table = tables.of(place).events
    generation, _, count = given.get("cursor", "").partition(":")
    known = int(count) if count.isdigit() and len(count) < 12 else 0
    is_increment = generation == str(table.generation) and known <= len(table.rows)
    rows = table.rows[known:] if is_increment else table.rows
    events = [
        {
            "event": str(row.get("event", ""))[:100],
            "name": str(row.get("name", ""))[:100],
            "text": str(row.get("text") or row.get("path") or row.get("error") or "")[:2_000],
            "path": str(row.get("path") or "")[:500],
            "step": read_step(row) if number(row.get("step")) is not None else None,
            "time": number(row.get("time")),
        }
        for row in rows[-_MOST_EVENTS:]
    ]
    cursor = f"{table.generation}:{len(table.rows)}"
    return {"events": events, "cursor": cursor, "reset": not is_increment}


def _integer(given: Mapping[str, str], name: str) -> int | None:
    raw = given.get(name, "")
    if not raw:
        return None
    try:
        return max(-(2**62), min(int(raw[:20]), 2**62))
    except ValueError:
        raise BadFilter(f"{name} must be an integer, not {raw[:50]!r}.") from None


# ---- rollouts ----


async def _step(request: Request) -> Response:
    watch = _watch(request)
    rollouts = Rollouts(await watch.place(request))
    rows = await watch.work(rollouts.of_step, request.path_params["step"])
    return PlainJson({"step": request.path_params["step"], "rollouts": rows})


async def _sample(request: Request) -> Response:
    watch = _watch(request)
    rollouts = Rollouts(await watch.place(request))
    where = [request.path_params[name] for name in ("step", "group", "index")]
    row = await watch.work(rollouts.sample, *where)
    if row is None:
        return JSONResponse({"detail": "There is no such sample in this run."}, 404)
    return PlainJson(row)


async def _prompts(request: Request) -> Response:
    watch = _watch(request)
    rollouts = Rollouts(await watch.place(request))
    return PlainJson({"prompts": await watch.work(rollouts.prompts)})


async def _prompt(request: Request) -> Response:
    watch = _watch(request)
    rollouts = Rollouts(await watch.place(request))
    identity = request.query_params.get("identity", "")
    found = await watch.work(rollouts.of_prompts, [identity])
    return PlainJson(found[identity])


async def _search(request: Request) -> Response:
    watch = _watch(request)
    rollouts = Rollouts(await watch.place(request))
    wanted = Filter.read(request.query_params)
    hits = await watch.work(rollouts.search, wanted, _place(request.query_params.get("after", "")))
    return PlainJson(hits.as_dict())


def _place(text: str) -> Place | None:
    """Read ``step,group,index``."""
    if not text:
        return None
    parts = text[:60].split(",")
    if len(parts) != 3 or not all(part.lstrip("-").isdecimal() for part in parts):
        raise BadFilter(f"after is step,group,index, not {text[:50]!r}.")
    step, group, index = (max(-(2**31), min(int(part), 2**31 - 1)) for part in parts)
    return step, group, index


async def _export(request: Request) -> Response:
    watch = _watch(request)
    place = await watch.place(request)
    wanted = Filter.read(request.query_params)
    form = request.query_params.get("format", "jsonl")
    if form not in _FORMS:
        raise BadFilter(f"format is one of {', '.join(_FORMS)}, not {form[:20]!r}.")
    table = await watch.work(Rollouts(place).export, wanted)
    content = await watch.work(_FORMS[form], table)
    name = f"{place.id}.{form}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


def _as_jsonl(table: pa.Table) -> bytes:
    rows = table.to_pylist(maps_as_pydicts="lossy")
    lines = [json.dumps(_finite(row), ensure_ascii=False, default=str) for row in rows]
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def _as_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _as_csv(table: pa.Table) -> bytes:
    """CSV has no nested values: components and the like are JSON in a cell. Texts that a
    spreadsheet would run as a formula begin with an apostrophe."""
    rows = table.to_pylist(maps_as_pydicts="lossy")
    cells = {name: [_cell(row[name]) for row in rows] for name in table.column_names}
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(cells), buffer)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(_finite(value), ensure_ascii=False, default=str)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


_FORMS: dict[str, Callable[[pa.Table], bytes]] = {
    "jsonl": _as_jsonl,
    "parquet": _as_parquet,
    "csv": _as_csv,
}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
