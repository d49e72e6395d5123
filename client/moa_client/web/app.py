"""The HTTP application of the daemon: the guard before the routes that it is given, and errors in their forms."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moa_shared.errors import MoaError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from moa_client.web.access import Access, Guard
from moa_client.web.body import RefusedUnread
from moa_client.web.error_form import RequestError, request_error

APIS = ("/v1/", "/api/")  # before the paths of the endpoint
UNREAD = (408, 413)  # the request's body was not read to its end
log = logging.getLogger(__name__)


def make_app(routes: Sequence[BaseRoute], access: Access) -> Starlette:
    """The application. `routes`: of the endpoint, the page and whatever else there is."""
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access), Middleware(OnePath)],
        exception_handlers=dict.fromkeys((RequestError, MoaError, HTTPException, Exception), _refuse),
    )
    app.router.redirect_slashes = False  # `OnePath` has taken them away
    return app


class OnePath:
    """Makes a path with slashes at its end the same as without: some programs join addresses so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


def _unknown(request: Request) -> str:
    words = f"There is nothing at {request.url.path}."
    api = next((each for each in APIS if f"{request.url.path}/".startswith(each)), None)
    if api is None:
        return words
    paths = [each.path for each in request.app.routes if isinstance(each, Route) and each.path.startswith(api)]
    if not paths:
        return words
    return f"{words} What there is: {', '.join(path for path in paths if '{' not in path)}."


def _refuse(request: Request, error: Exception) -> Response:
    refusal = _as_request_error(request, error)
    path = request.url.path
    return RefusedUnread(refusal, path) if refusal.status in UNREAD else refusal.response(path)


def _as_request_error(request: Request, error: Exception) -> RequestError:
    match error:
        case RequestError():
            return error
        case MoaError():
            return request_error(error)
        case HTTPException(status_code=404):
            return RequestError(404, _unknown(request), code="unknown_url")
        case HTTPException():
            return RequestError(error.status_code, f"{request.method} {request.url.path}: {error.detail}.")
        case _:
            log.error("a request to %s has failed", request.url.path, exc_info=error)
            return RequestError(500, "This is a defect of moa: please report it with the log.", code="internal")
