"""The routes of the page: its files, its two WebSockets, and what it asks about conversations and the link."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from moa_shared.errors import ConfigError, ConflictError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from moa_client.page.backend import EXPORT_TYPES, ExportForm, PageBackend
from moa_client.page.files import SECURITY, StaticFiles
from moa_client.page.origin import is_own
from moa_client.page.sockets import conversation_endpoint, timeline_endpoint
from moa_client.web.error_form import RequestError

MOST_SEARCHED = 200  # characters
HEADERS = {**SECURITY, "cache-control": "no-store"}
Handler = Callable[[Request], Awaitable[Response]]


def page_routes(backend: PageBackend) -> list[BaseRoute]:
    """All routes of the page, for an application that shows errors of the catalogue (`make_app`)."""
    static = StaticFiles()

    async def status(request: Request) -> Response:
        return _json(backend.status())

    async def conversations(request: Request) -> Response:
        kept = await backend.conversations(request.query_params.get("search", "")[:MOST_SEARCHED])
        return _json({"conversations": [asdict(each) for each in kept]})

    async def conversation(request: Request) -> Response:
        identifier = request.path_params["id"]
        if request.method == "DELETE":
            try:
                await backend.delete(identifier)
            except ConflictError as error:
                raise RequestError(409, str(error), code=error.code) from error
            return Response(None, 204, HEADERS)
        return Response(await backend.export(identifier, "json"), 200, HEADERS, EXPORT_TYPES["json"][0])

    async def export(request: Request) -> Response:
        form = _form(request.query_params.get("format", "markdown"))
        content_type, ending = EXPORT_TYPES[form]
        text = await backend.export(request.path_params["id"], form)
        name = re.sub(r"[^\w-]", "", request.path_params["id"], flags=re.ASCII)[:64]
        disposition = f'attachment; filename="conversation-{name}.{ending}"'
        return Response(text, 200, {**HEADERS, "content-disposition": disposition}, content_type)

    async def wish(request: Request) -> Response:
        backend.set_offline(request.url.path.endswith("/offline"))
        return _json(backend.status())

    return [
        Route("/", static.index),
        Route("/page/{path:path}", static.file),
        WebSocketRoute("/moa/v1/conversation", conversation_endpoint(backend)),
        WebSocketRoute("/moa/v1/timeline", timeline_endpoint(backend)),
        Route("/moa/v1/status", _own(status)),
        Route("/moa/v1/conversations", _own(conversations)),
        Route("/moa/v1/conversations/{id}", _own(conversation), methods=["GET", "DELETE"]),
        Route("/moa/v1/conversations/{id}/export", _own(export)),
        Route("/moa/v1/offline", _own(wish), methods=["POST"]),
        Route("/moa/v1/online", _own(wish), methods=["POST"]),
    ]


def _own(handler: Handler) -> Handler:
    """Refuses requests of other sites' pages, also of those that may use the endpoint."""

    async def guarded(request: Request) -> Response:
        if not is_own(request):
            raise RequestError(403, "Another site's page has sent this request: conversations are for moa's own page.")
        return await handler(request)

    return guarded


def _form(name: str) -> ExportForm:
    if name not in EXPORT_TYPES:
        raise ConfigError(f"There is no export as {name[:40]!r}.", hint="Use format=markdown or format=json.")
    return name


def _json(content: object) -> Response:
    return JSONResponse(content, 200, HEADERS)
