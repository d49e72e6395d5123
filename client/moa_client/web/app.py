"""The HTTP application of the daemon: the guard before the routes that it is given, and errors in one form."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moa_shared.errors import MoaError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from moa_client.web.access import Access
from moa_client.web.body import RefusedUnread
from moa_client.web.error_form import RequestError, request_error
from moa_client.web.guard import Guard

UNREAD = (408, 413)  # the request's body was not read to its end
log = logging.getLogger(__name__)


def make_app(routes: Sequence[BaseRoute], access: Access) -> Starlette:
    """The application.

    Args:
        routes: of the endpoint, the page and whatever else there is.
    """
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers=dict.fromkeys((RequestError, MoaError, HTTPException, Exception), _refuse),
    )


def _refuse(request: Request, error: Exception) -> Response:
    refusal = _as_request_error(request, error)
    return RefusedUnread(refusal) if refusal.status in UNREAD else refusal.response()


def _as_request_error(request: Request, error: Exception) -> RequestError:
    match error:
        case RequestError():
            return error
        case MoaError():
            return request_error(error)
        case HTTPException(status_code=404):
            return RequestError(404, f"There is nothing at {request.url.path}.", code="unknown_url")
        case HTTPException():
            return RequestError(error.status_code, f"{request.method} {request.url.path}: {error.detail}.")
        case _:
            log.error("a request to %s has failed", request.url.path, exc_info=error)
            return RequestError(500, "This is a defect of moa: please report it with the log.", code="internal")
