"""The middleware before all routes: lets in what `Access` allows, and answers browsers that ask beforehand.

No state. Invariant: no route sees a request of another site's page, or one without the key where one is needed. Other
users are refused before, where connections are made.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moa_client.web.access import Access
from moa_client.web.error_form import RequestError

HEALTH = "/health"


def is_public(path: str) -> bool:
    """Whether a path needs no key: the page's own files ask for it themselves, and whether requests can be answered
    is for whatever watches over the daemon.
    """
    return path in ("/", "/favicon.ico", HEALTH) or path.startswith("/page/")


class Guard:
    """Checks Host, Origin and key of each request and WebSocket."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        answer = self._with_cors(send, origin)
        try:
            is_asked = self._check(scope, headers, origin)
        except RequestError as error:
            await error.response(scope["path"])(scope, receive, answer)
            return
        if is_asked:
            await Response(status_code=204, headers=self._access.preflight_headers(headers))(scope, receive, send)
        else:
            await self._app(scope, receive, answer)

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> bool:
        """Whether it only asks what may be sent (which shows no key).

        Raises:
            RequestError: it may not enter.
        """
        host = headers.get("host", "")
        self._access.check_host(host)
        if origin is not None:
            self._access.check_origin(origin, host)
            if scope["type"] == "http" and scope["method"] == "OPTIONS":
                return True
        if not is_public(scope["path"]):
            self._access.check_key(headers)
        return False

    def _with_cors(self, send: Send, origin: str | None) -> Send:
        cors = self._access.cors_headers(origin) if origin is not None else {}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("x-content-type-options", "nosniff")
                for name, value in cors.items():
                    headers[name] = value
            await send(message)

        return send_with_headers
