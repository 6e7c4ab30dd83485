"""The REST API under `/api/v1`: `estimate`, `search`, `export`, `link` and the catalog.

Errors are JSON: 422 with the messages of the command line, 404 and 405 for paths and methods that
there are not, 503 where too much work waits.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from shardwise import catalog
from shardwise.config.base import ConfigBase
from shardwise.errors import Fault, InputError
from shardwise.web import questions
from shardwise.web.questions import EstimateQuestion, ExportQuestion, SearchQuestion
from shardwise.web.workers import BusyError, Jobs, Pool

PREFIX = "/api/v1"
_UNPROCESSABLE, _BUSY, _ACCEPTED, _NOT_FOUND, _NO_METHOD = 422, 503, 202, 404, 405
_QUESTIONS: Mapping[str, type[ConfigBase]] = {
    "/estimate": EstimateQuestion,
    "/search": SearchQuestion,
    "/export": ExportQuestion,
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    _UNPROCESSABLE: {"description": "Bad input: one message for each fault."},
    _BUSY: {"description": "Too much work is waiting."},
}


def add_api(app: FastAPI, pool: Pool, jobs: Jobs) -> None:
    """Add the routes and the form of errors to a server."""
    routes = APIRouter(prefix=PREFIX, responses=_ERRORS)

    @routes.post("/estimate")
    async def estimate(question: EstimateQuestion) -> Response:
        """Estimate step time, memory and cost of one strategy: the record of `estimate --json`."""
        return _json(await pool.run(questions.estimate_text, question))

    @routes.post("/search", status_code=_ACCEPTED)
    async def search(question: SearchQuestion) -> dict[str, Any]:
        """Start a search; the answer has the `id` to ask for its progress."""
        return jobs.start(questions.answer_search, question).to_dict()

    @routes.get("/search/{job}")
    async def progress(job: str) -> dict[str, Any]:
        """State of a search: waiting, running, done (with `result`), failed or cancelled."""
        return jobs.get(job).to_dict()

    @routes.delete("/search/{job}")
    async def cancel(job: str) -> dict[str, Any]:
        """Stop a search."""
        return jobs.cancel(job).to_dict()

    @routes.post("/export")
    async def export(question: ExportQuestion) -> dict[str, Any]:
        """Write a plan as the files of a launcher: `files`, from names to texts."""
        return await pool.run(questions.answer_export, question)

    @routes.post("/link")
    async def link(result: dict[str, Any], plan: str | None = None) -> Response:
        """Link that opens a saved result: the record of `estimate --json` or `search --json`."""
        return _json(await pool.run(questions.link_text, result, plan))

    for folder in questions.FOLDERS:
        _add_folder(routes, pool, folder)
    app.include_router(routes)
    app.router.routes.append(Route("/api/{rest:path}", _Unknown(routes)))
    app.add_exception_handler(InputError, _bad_input)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(BusyError, _busy)


class _Unknown:
    """Answers what no route takes, of all methods; the page would answer as HTML."""

    def __init__(self, routes: APIRouter) -> None:
        self._routes = [one for one in routes.routes if isinstance(one, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a path that does not exist, or a method that its path does not have."""
        matching = [one for one in self._routes if one.matches(scope)[0] is not Match.NONE]
        allowed = ", ".join(sorted({name for one in matching for name in one.methods or ()}))
        if allowed:
            status, headers = _NO_METHOD, {"Allow": allowed}
            fault = Fault.of("method", scope["method"], f"allowed: {allowed}", "request")
        else:
            status, headers = _NOT_FOUND, {}
            problem = f"no such path; {PREFIX}/openapi.json lists all"
            fault = Fault.of("path", scope["path"], problem, "request")
        await JSONResponse(faults_record((fault,)), status, headers)(scope, receive, send)


def _add_folder(routes: APIRouter, pool: Pool, folder: str) -> None:
    """Add the list of a folder of the catalog, and its entries."""

    @routes.get(f"/{folder}", name=folder, summary=f"Names of the {folder} of the catalog.")
    async def listed() -> list[str]:
        return catalog.names(folder)

    @routes.get(f"/{folder}/{{name}}", name=f"{folder}-entry", summary=f"One of the {folder}.")
    async def one(name: str) -> Response:
        return _json(await pool.run(questions.entry_text, folder, name))


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def faults_record(faults: tuple[Fault, ...]) -> dict[str, Any]:
    """Faults as the API writes them: the line of the command line, and its components."""
    return {
        "errors": [
            {"message": str(fault), "source": fault.source, "field": fault.field}
            for fault in faults
        ]
    }


async def _bad_input(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)  # noqa: S101 - registered for it
    return JSONResponse(faults_record(error.faults), _UNPROCESSABLE)


async def _bad_request(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong in the words of the command line."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    kind = _QUESTIONS.get(request.url.path.removeprefix(PREFIX))
    if kind is None or not isinstance(error.body, Mapping):
        fault = Fault(source="request", problem="must be JSON: a mapping of fields to values")
        return JSONResponse(faults_record((fault,)), _UNPROCESSABLE)
    try:
        kind.validated(error.body, source="request")
    except InputError as refused:
        return await _bad_input(request, refused)
    raise error


async def _busy(_: Request, error: Exception) -> JSONResponse:
    fault = Fault(source="server", problem=str(error))
    return JSONResponse(faults_record((fault,)), _BUSY, headers={"Retry-After": "5"})
