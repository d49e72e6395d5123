"""The routes of the page: its files, its two WebSockets, and what it asks about conversations and the link."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from moa_shared.errors import ConfigError, ConflictError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from moa_client.page import sockets
from moa_client.web.error_form import RequestError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# Scripts and styles from here alone, no HTML from strings at all (trusted types), no frame around the page.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), clipboard-write=(self)",
}


class StaticFiles:
    """All files below the folder `static`, by their path there."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        folder = Path(__file__).parent / "static"
        for path in folder.rglob("*"):
            if (kind := TYPES.get(path.suffix[1:])) is not None:
                content = path.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                self._files[path.relative_to(folder).as_posix()] = content, kind, tag

    async def index(self, request: Request) -> Response:
        return self._respond(request, "index.html")

    async def file(self, request: Request) -> Response:
        return self._respond(request, request.path_params["path"])

    def _respond(self, request: Request, path: str) -> Response:
        found = self._files.get(path)
        if found is None:
            return PlainTextResponse("There is no such file in the page.\n", 404, SECURITY)
        content, kind, tag = found
        headers = {**SECURITY, "etag": tag, "cache-control": "no-cache", "content-type": kind}
        if tag in (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")):
            return Response(None, 304, headers)
        return Response(content, 200, headers)


MOST_SEARCHED = 200  # characters
HEADERS = {**SECURITY, "cache-control": "no-store"}
Handler = Callable[[Request], Awaitable[Response]]


def page_routes(backend: sockets.PageBackend) -> list[BaseRoute]:
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
        return Response(await backend.export(identifier, "json"), 200, HEADERS, sockets.EXPORT_TYPES["json"][0])

    async def export(request: Request) -> Response:
        form = _form(request.query_params.get("format", "markdown"))
        content_type, ending = sockets.EXPORT_TYPES[form]
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
        WebSocketRoute("/moa/v1/conversation", sockets.conversation_endpoint(backend)),
        WebSocketRoute("/moa/v1/timeline", sockets.timeline_endpoint(backend)),
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
        if not sockets.is_own(request):
            raise RequestError(403, "Another site's page has sent this request: conversations are for moa's own page.")
        return await handler(request)

    return guarded


def _form(name: str) -> sockets.ExportForm:
    if name not in sockets.EXPORT_TYPES:
        raise ConfigError(f"There is no export as {name[:40]!r}.", hint="Use format=markdown or format=json.")
    return name


def _json(content: object) -> Response:
    return JSONResponse(content, 200, HEADERS)
