"""Reads the body of a request, up to a limit of bytes and of time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from moa_shared.text.plain_text import parse_request
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from moa_client.web.error_form import RequestError

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
