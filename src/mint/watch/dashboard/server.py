"""The dashboard's server: a stateless reader of run directories.

Everything is GET. The page and its parts are under ``/``, the data under ``/api/``. Responses
that grow with the run (metrics, events, searches) are incremental.
"""

import asyncio
import io
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mint.watch.dashboard.access import Access
from mint.watch.dashboard.curves import columns, read_step
from mint.watch.dashboard.filters import BadFilter, Filter
from mint.watch.dashboard.overview import Tables, flat, overview, read_config, stop_strings
from mint.watch.dashboard.query import Place, QueryFailed, Rollouts
from mint.watch.dashboard.run_index import RunIndex, RunPlace, UnknownRun
from mint.watch.dashboard.tail import Tail
from mint.watch.directory.files import lines, plain
from mint.watch.verdict.series import number

Status = Callable[[Request], Awaitable[dict[str, Any]]]
Permission = Callable[[Request], Awaitable[bool]]
Answer = Callable[[RunPlace, Tables, Request], Any]
ASSETS = Path(__file__).parent / "assets"
"""The page: plain ES modules, styles, and three vendored libraries."""
_AT_ONCE = 4
_MOST_EVENTS = 5_000
_STATUSES = {UnknownRun: 404, BadFilter: 400, QueryFailed: 422}


@dataclass
class Watch:
    """The state of the routes: the runs, and the service that the dashboard is attached to."""

    index: RunIndex
    demo: bool = False
    service: Status | None = None
    may_read: Permission | None = None
    tables: Tables = field(default_factory=Tables)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function that reads files in a thread, a few at a time."""
        async with self.turns:
            return await asyncio.to_thread(function, *arguments)

    async def about(self, _: Request) -> Response:
        """Describe this dashboard."""
        return PlainJson({"service": self.service is not None, "demo": self.demo, "bundle": False})

    async def status(self, request: Request) -> Response:
        """Describe the service that this dashboard is attached to."""
        if self.service is None:
            raise HTTPException(404, "This dashboard is not attached to a service.")
        return PlainJson(await self.service(request))

    async def runs(self, request: Request) -> Response:
        """List the runs."""
        if self.may_read is not None and not await self.may_read(request):
            return PlainJson({"runs": [], "hidden": True})
        return PlainJson({"runs": await self.work(list_runs, self.index, self.tables)})

    def of_run(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that answers a question about one run, in a thread."""

        async def endpoint(request: Request) -> Response:
            if self.may_read is not None and not await self.may_read(request):
                raise UnknownRun("Run directories are shown on the service's own machine only.")
            place = await asyncio.to_thread(self.index.get, request.path_params["run"])
            found = await self.work(answer, place, self.tables, request)
            return found if isinstance(found, Response) else PlainJson(found)

        return endpoint


class PlainJson(JSONResponse):
    """JSON in which numbers that are not finite are null."""

    def render(self, content: Any) -> bytes:
        try:
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError:
            text = json.dumps(plain(content), ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")


def create_app(watch: Watch, key: str | None = None, hosts: Iterable[str] | None = ()) -> Starlette:
    """Create the dashboard's application. ``key`` and ``hosts`` are those of :class:`Access`."""
    questions: dict[str, Answer] = {
        "": lambda place, tables, _: describe(place, tables),
        "/metrics": lambda place, tables, asked: metrics_since(place, tables, asked.query_params),
        "/events": lambda place, tables, asked: events_since(place, tables, asked.query_params),
        "/steps/{step:int}": _step,
        "/samples/{step:int}/{group:int}/{index:int}": _sample,
        "/prompts": lambda place, *_: {"prompts": Rollouts(place).prompts()},
        "/prompt": _prompt,
        "/search": _search,
        "/export": _export,
    }
    return Starlette(
        routes=[
            Route("/", lambda _: FileResponse(ASSETS / "index.html")),
            Mount("/assets", StaticFiles(directory=ASSETS)),
            Route("/api/about", watch.about),
            Route("/api/service", watch.status),
            Route("/api/runs", watch.runs),
            *(Route(f"/api/runs/{{run}}{path}", watch.of_run(q)) for path, q in questions.items()),
        ],
        middleware=[Middleware(Access, key=key, hosts=hosts)],
        exception_handlers=dict.fromkeys((HTTPException, *_STATUSES), _error),
    )


async def _error(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"detail": error.detail}, error.status_code)
    status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, status)


# ---- runs ----


def list_runs(index: RunIndex, tables: Tables) -> list[dict[str, Any]]:
    """Describe all runs, the one that was written to last first."""
    found = [tables.overview(place) for place in index.runs()]
    return sorted(found, key=lambda run: (-(run["updated"] or 0.0), run["name"]))


def describe(place: RunPlace, tables: Tables) -> dict[str, Any]:
    """Describe one run with its settings."""
    settings, text = read_config(place)
    known = tables.of(place)
    return {
        **overview(place, known),
        "config": flat(settings),
        "config_text": text,
        "stop": stop_strings(settings),
        "components": known.components(Rollouts(place)),
    }


def metrics_since(place: RunPlace, tables: Tables, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the metrics of all steps, of ``from`` to ``to``, or those after the ``cursor``.

    A cursor is ``generation:rows``; if the table was truncated since (a resumed run), the answer is
    the whole table with ``reset``.
    """
    run = tables.of(place)
    known, position = _since(run.metrics, given)
    if "from" in given and "to" in given:
        first, last = _integer(given["from"]), _integer(given["to"])
        rows = [row for row in run.metrics.rows if first <= read_step(row) <= last]
        return {**columns(rows), **position}
    return {**(columns(run.metrics.rows[known:]) if known else run.curves()), **position}


def events_since(place: RunPlace, tables: Tables, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the events after a cursor, as :func:`metrics_since` does; the last ones if many."""
    table = tables.of(place).events
    known, position = _since(table, given)
    events = [
        {
            "event": str(row.get("event", ""))[:100],
            "name": str(row.get("name", ""))[:100],
            "text": str(row.get("text") or row.get("path") or row.get("error") or "")[:2_000],
            "path": str(row.get("path") or "")[:500],
            "step": read_step(row) if number(row.get("step")) is not None else None,
            "time": number(row.get("time")),
        }
        for row in table.rows[known:][-_MOST_EVENTS:]
    ]
    return {"events": events, **position}


def _since(table: Tail, given: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return how many rows the caller has, and the new cursor."""
    generation, _, count = given.get("cursor", "").partition(":")
    known = int(count) if count.isdigit() and len(count) < 12 else 0
    is_increment = generation == str(table.generation) and known <= len(table.rows)
    cursor = f"{table.generation}:{len(table.rows)}"
    return known if is_increment else 0, {"cursor": cursor, "reset": not is_increment}


# ---- rollouts ----


def _step(place: RunPlace, _: Tables, request: Request) -> dict[str, Any]:
    step = request.path_params["step"]
    return {"step": step, "rollouts": Rollouts(place).of_step(step)}


def _sample(place: RunPlace, _: Tables, request: Request) -> dict[str, Any]:
    where = (request.path_params[name] for name in ("step", "group", "index"))
    row = Rollouts(place).sample(*where)
    if row is None:
        raise HTTPException(404, "There is no such sample in this run.")
    return row


def _prompt(place: RunPlace, _: Tables, request: Request) -> Any:
    identity = request.query_params.get("identity", "")
    return Rollouts(place).of_prompts([identity])[identity]


def _search(place: RunPlace, _: Tables, request: Request) -> dict[str, Any]:
    after = _place(request.query_params.get("after", ""))
    return asdict(Rollouts(place).search(Filter.read(request.query_params), after))


def _place(text: str) -> Place | None:
    """Read ``step,group,index``."""
    if not text:
        return None
    parts = text[:60].split(",")
    if len(parts) != 3:
        raise BadFilter(f"after is step,group,index, not {text[:50]!r}.")
    step, group, index = map(_integer, parts)
    return step, group, index


def _integer(text: str) -> int:
    """Read an integer of 32 bits, the next one for those that are larger."""
    if not re.fullmatch(r"-?\d{1,20}", text):
        raise BadFilter(f"{text[:50]!r} is not an integer.")
    return max(-(2**31), min(int(text), 2**31 - 1))


def _export(place: RunPlace, _: Tables, request: Request) -> Response:
    form = request.query_params.get("format", "jsonl")
    if form not in _FORMS:
        raise BadFilter(f"format is one of {', '.join(_FORMS)}, not {form[:20]!r}.")
    content = _FORMS[form](Rollouts(place).export(Filter.read(request.query_params)))
    headers = {"content-disposition": f'attachment; filename="{place.id}.{form}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


def _as_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _as_csv(table: pa.Table) -> bytes:
    """Write CSV. Nested values become JSON, and texts that a spreadsheet would run get a quote."""
    rows = table.to_pylist(maps_as_pydicts="lossy")
    cells = {name: [_cell(row[name]) for row in rows] for name in table.column_names}
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(cells), buffer)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(plain(value), ensure_ascii=False, default=str)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


_FORMS: dict[str, Callable[[pa.Table], bytes]] = {
    "jsonl": lambda table: lines(table.to_pylist(maps_as_pydicts="lossy")),
    "parquet": _as_parquet,
    "csv": _as_csv,
}
