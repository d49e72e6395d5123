"""The HTTP application of the daemon: the guard before the routes, errors in their forms, and bounded bodies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from moa_shared.errors import MoaError
from moa_shared.text.plain_text import parse_request
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from moa_client.web.access import Access, Guard
from moa_client.web.error_form import RequestError, request_error

MOST_BYTES = 1 << 20  # far more than a context holds
BODY_SECONDS = 30.0
LINGER_SECONDS = 2.0


async def read_json(request: Request, most_bytes: int = MOST_BYTES, seconds: float = BODY_SECONDS) -> Mapping[str, Any]:
    """The JSON object that a request brings.

    Raises:
        RequestError: it is too large, comes too slowly, or is none.
        ClientDisconnect: the client has left.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError:
        raise RequestError(
            408, f"The body of the request did not arrive within {seconds:g} s. Send it again."
        ) from None
    try:
        value = parse_request(bytes(body))
    except ValueError as error:
        raise RequestError(400, f"The body of the request is no JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(400, "The body of the request must be a JSON object.", code="invalid_json")
    return value


def _too_large(most_bytes: int) -> RequestError:
    return RequestError(
        413, f"The body of the request is longer than {most_bytes} bytes. Send less.", code="request_too_large"
    )


class RefusedUnread(JSONResponse):
    """Answers a request whose body was not read to its end, and closes the connection.

    A client that still sends would be cut off before it has read the answer; so what it sends is dropped for a moment.
    """

    def __init__(self, error: RequestError, path: str) -> None:
        super().__init__(error.fields_at(path), error.status, {"connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(LINGER_SECONDS):
                async for _ in Request(scope, receive).stream():
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
