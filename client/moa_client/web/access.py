"""Who may send requests: pages of this device and programs of its user, and no other site's page.

A page of another site can send requests to any address of this device. Its browser names that page in Origin; and a
host name of that site which was pointed to this device (DNS rebinding) is in Host. Both must be known here. Other users
are refused before, where connections are made.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from moa_shared.errors import ConfigError
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moa_client.servers.keys import read_key_file
from moa_client.web.error_form import RequestError

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
SUBPROTOCOL = "moa"  # of WebSockets; a page cannot send Authorization with one: it offers "moa" and "moa.key.KEY"
KEY_SUBPROTOCOL = f"{SUBPROTOCOL}.key."
PREFLIGHT_SECONDS = 600  # that a browser remembers what another site's page may send
PORTS = {"http": 80, "https": 443}
ALLOWED_BY_NAME = "Name it with --allowed-origin if its pages may use this device."


@dataclass(frozen=True)
class Access:
    """The rules of one server.

    Args:
        host: that it listens on; `port`: the same.
        origins: of other sites' pages that may use it, such as "https://app.example"; their host names may be in Host,
            as a proxy has it.
        key: that a request must show, but for the page's own files; empty: none.
    """

    host: str
    port: int
    origins: tuple[str, ...] = ()
    key: str = field(default="", repr=False)

    def check_user(self, user: int | None) -> None:
        """Checks who has connected, where no key says it.

        Args:
            user: id of the user of this device; None: it cannot be told.

        Raises:
            RequestError: not known to be the daemon's; root may do anything in any case.
        """
        if user is None:
            raise RequestError(
                403, "The system does not say which user has connected. A key (--endpoint-key-file) would let you in."
            )
        if user not in (0, os.getuid()):
            raise RequestError(
                403, "Another user of this device has sent this request. A key (--endpoint-key-file) would let both in."
            )

    def check_host(self, host: str) -> None:
        """Checks the header Host.

        Raises:
            RequestError: it names no host of ours.
        """
        if not self._is_ours(host) and all(host.lower() not in _hosts_of(origin) for origin in self.origins):
            raise RequestError(
                403, f"The header Host is {_shown(host)}, which is no name of this device. {ALLOWED_BY_NAME}"
            )

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may use it. `host`: the header Host, which `check_host` lets pass."""
        return self._is_listed(origin) or (self._is_ours(host) and origin.lower() == f"http://{host.lower()}")

    def check_origin(self, origin: str, host: str) -> None:
        """Checks the header Origin.

        Raises:
            RequestError: another site's page sends it.
        """
        if not self.allows_origin(origin, host):
            raise RequestError(403, f"Pages of {_shown(origin)} may not use this device. {ALLOWED_BY_NAME}")

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Checks the key: in Authorization, in X-Api-Key as Anthropic has it, or among the subprotocols of a WebSocket.

        Raises:
            RequestError: it is missing or wrong.
        """
        if not self.key:
            return
        given = _keys_in(headers)
        if not any(hmac.compare_digest(each.encode(), self.key.encode()) for each in given):
            what = "is wrong" if given else "is missing"
            raise RequestError(401, f"The key {what}. Send it as Authorization: Bearer KEY.", code="invalid_api_key")

    def cors_headers(self, origin: str) -> dict[str, str]:
        """What lets a page of an allowed origin read the response."""
        if not self._is_listed(origin):
            return {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": "retry-after", "vary": "origin"}

    def preflight_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The answer to a browser that asks what such a page may send."""
        answer = self.cors_headers(headers.get("origin", ""))
        if answer:
            answer |= {
                "access-control-allow-methods": "GET, POST, DELETE",
                "access-control-allow-headers": headers.get("access-control-request-headers", ""),
                "access-control-max-age": str(PREFLIGHT_SECONDS),
            }
            if headers.get("access-control-request-private-network") == "true":
                answer["access-control-allow-private-network"] = "true"
        return answer

    def _is_listed(self, origin: str) -> bool:
        """Whether it is one of `origins`, by scheme, host and port."""
        return any(_with_port(origin) == _with_port(listed) for listed in self.origins)

    def _is_ours(self, host: str) -> bool:
        """Whether the header Host names this server itself, not an allowed origin."""
        names = [*LOCAL_HOSTS, self.host.lower() if ":" not in self.host else f"[{self.host.lower()}]"]
        local = {f"{name}:{self.port}" for name in names} | (set(names) if self.port == 80 else set())
        return host.lower() in local or self._is_address_of_ours(host)

    def _is_address_of_ours(self, host: str) -> bool:
        """Whether we listen on all addresses, and this is one: nobody can point an address elsewhere."""
        name, _, port = host.rpartition(":")
        if port != str(self.port) or not is_address(self.host) or not ip_address(self.host).is_unspecified:
            return False
        return is_address(name.removeprefix("[").removesuffix("]"))


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _keys_in(headers: Mapping[str, str]) -> list[str]:
    """The keys that a request shows; a program may send another service's in one place, and ours in the other."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
    given = [
        bearer if scheme.lower() == "bearer" else "",
        headers.get("x-api-key", ""),
        next((each.removeprefix(KEY_SUBPROTOCOL) for each in offered if KEY_SUBPROTOCOL in each), ""),
    ]
    return [key for each in given if (key := each.strip())]


def _with_port(origin: str) -> str:
    """An origin with its port, which a browser leaves out where it is the scheme's own."""
    scheme, _, host = origin.lower().partition("://")
    own = PORTS.get(scheme)
    return origin.lower() if own is None or re.search(r":\d+$", host) else f"{scheme}://{host}:{own}"


def _hosts_of(origin: str) -> tuple[str, str]:
    """What a proxy may send as Host: an allowed origin's host, with its port and as it was given."""
    return origin.lower().partition("://")[2], _with_port(origin).partition("://")[2]


def _shown(text: str) -> str:
    return repr(text[:100]) if text else "missing"


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


VARIABLE = "MOA_ENDPOINT_KEY"
FEWEST_CHARACTERS = 16
# What may be a part of a WebSocket's subprotocol, by which a page sends it.
_KEY = re.compile(r"[A-Za-z0-9._~+-]+")


def read_key(path: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The key; empty: none is needed. `path`: of the file; None: the environment may have one."""
    if path is not None:
        key, source = read_key_file(path), f"The key file {path}"
    elif VARIABLE in environment:
        key, source = environment[VARIABLE], VARIABLE
    else:
        return ""
    if len(key) < FEWEST_CHARACTERS or not _KEY.fullmatch(key):
        raise ConfigError(
            f"{source} has no key of at least {FEWEST_CHARACTERS} letters, digits and ._~+-",
            hint="Make one: openssl rand -hex 32",
        )
    return key
