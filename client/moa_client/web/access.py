"""Who may send requests: pages of this device and programs of its user, and how a request is refused.

A page of another site can send requests to any address of this device. Its browser names that page in Origin; and a
host name of that site which was pointed to this device (DNS rebinding) is in Host. Both must be known here. Other users
are refused before, where connections are made. An error of the catalogue keeps its words; its class decides the status,
and the path its form: OpenAI's, Anthropic's or ollama's.
"""

import hmac
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moa_shared import errors
from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import ip_of
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moa_client.servers.book import read_key_file

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = TYPES | {413: "request_too_large", 503: "overloaded_error"}  # the latter: try again
ANTHROPIC_TOO_LONG = "prompt is too long"  # agents look for these words, and shorten the conversation
UNREAD = (408, 413)  # the body of the request was not read to its end
CODES = {  # which programs look for
    errors.ContextLengthError.code: "context_length_exceeded",
    errors.RateLimitError.code: "rate_limit_exceeded",
}
STATUS: tuple[tuple[type[errors.MoaError], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.OverloadedError, 429),
    (errors.MismatchError, 503),
    (errors.UnavailableError, 503),
    (errors.DeniedError, 502),  # the server does, not this device
    (errors.ConfigError, 400),
    (errors.ContextLengthError, 400),
    (errors.DataError, 400),
    (errors.ModelSourceError, 400),
    (errors.TokenRangeError, 400),
)


class RequestError(Exception):
    """A request is refused, or has failed.

    Args:
        message: what happened, and what to do.
        param: the parameter that it is about, such as "messages[0].role".
        code: for programs.
        retry_seconds: when to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_seconds = retry_seconds

    def fields_at(self, path: str) -> dict[str, Any]:
        if path.startswith("/api/"):
            return {"error": str(self)}
        if path.startswith("/v1/messages"):
            kind = ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
            is_long = self.code == CODES[errors.ContextLengthError.code]
            message = f"{ANTHROPIC_TOO_LONG}: {self}" if is_long else str(self)
            return {"type": "error", "error": {"type": kind, "message": message}}
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> JSONResponse:
        """The answer to the request. `path`: of the request, which decides the form; empty: OpenAI's."""
        headers = {} if self.retry_seconds is None else {"retry-after": str(self.retry_seconds)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in UNREAD:
            headers["connection"] = "close"
        return JSONResponse(self.fields_at(path), self.status, headers)


def request_error(error: errors.MoaError, *, status: int | None = None, param: str | None = None) -> RequestError:
    """An error of the catalogue as the failure of a request.

    `status` is HTTP's, by default that of the error's class; `param` is the parameter that it is about.
    """
    if status is None:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    retry = -(-error.retry_after_ms // 1000) if isinstance(error, errors.OverloadedError) else None
    return RequestError(status, str(error), param=param, code=CODES.get(error.code, error.code), retry_seconds=retry)


LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
SUBPROTOCOL = "moa"  # of WebSockets; a page cannot send Authorization with one: it offers "moa" and "moa.key.KEY"
KEY_SUBPROTOCOL = f"{SUBPROTOCOL}.key."
PORTS = {"http": "80", "https": "443"}
PAGE = "/moa/"  # conversations are for moa's own page
HEALTH = "/health"
ALLOWED_BY_NAME = "Name it with --allowed-origin if its pages may use this device."


@dataclass(frozen=True)
class Access:
    """The rules of one server, which listens on `host` and `port`.

    `origins`: of other sites' pages that may use its endpoint, such as "https://app.example"; their host names may be
    in Host, as a proxy has it. `key`: that a request must show, but for the page's own files; empty: none.
    """

    host: str
    port: int
    origins: tuple[str, ...] = ()
    key: str = field(default="", repr=False)

    def check_user(self, user: int | None) -> None:
        """Checks who has connected, where no key says it; root may do anything in any case. None: it cannot be told."""
        if self.key or user in (0, os.getuid()):
            return
        who = "The system does not say which user has connected."
        if user is not None:
            who = "Another user of this device has sent this request."
        raise RequestError(403, f"{who} A key (--endpoint-key-file) would let everybody in who has it.")

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raises RequestError if a request with these headers may not enter."""
        host, origin = headers.get("host", ""), headers.get("origin")
        self.check_host(host)
        if origin is not None:
            self.check_origin(origin, host, path)
        if not is_public(path):
            self.check_key(headers)

    def check_host(self, host: str) -> None:
        if not self._is_ours(host) and host.lower() not in self._hosts:
            raise RequestError(
                403, f"The header Host is {_shown(host)}, which is no name of this device. {ALLOWED_BY_NAME}"
            )

    def check_origin(self, origin: str, host: str, path: str = "") -> None:
        """`host`: the header Host, which `check_host` lets pass."""
        if self._is_ours(host) and origin.lower() == f"http://{host.lower()}":
            return
        if _as_sent(origin) not in self.sent_origins:
            raise RequestError(403, f"Pages of {_shown(origin)} may not use this device. {ALLOWED_BY_NAME}")
        if path.startswith(PAGE):
            raise RequestError(403, "Another site's page has sent this request: conversations are for moa's own page.")

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Checks the key: in Authorization, in X-Api-Key as Anthropic has it, or among the subprotocols of a WebSocket.

        A program may send another service's key in one place, and ours in the other.
        """
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
        given = [bearer] if scheme.lower() == "bearer" else []
        given += [each.removeprefix(KEY_SUBPROTOCOL) for each in offered if KEY_SUBPROTOCOL in each]
        given = [each.strip() for each in (*given, headers.get("x-api-key", "")) if each.strip()]
        if self.key and not any(hmac.compare_digest(each.encode(), self.key.encode()) for each in given):
            what = "is wrong" if given else "is missing"
            raise RequestError(401, f"The key {what}. Send it as Authorization: Bearer KEY.", code="invalid_api_key")

    @property
    def sent_origins(self) -> tuple[str, ...]:
        return tuple(map(_as_sent, self.origins))

    @property
    def _hosts(self) -> set[str]:
        """What a proxy may send as Host: an allowed origin's host, with its port or without."""
        parts = [origin.partition("://") for origin in self.sent_origins]
        return {host for scheme, _, name in parts for host in (name, f"{name}:{PORTS.get(scheme)}")}

    def _is_ours(self, host: str) -> bool:
        """Whether the header Host names this server itself, not an allowed origin."""
        names = [*LOCAL_HOSTS, self.host.lower() if ":" not in self.host else f"[{self.host.lower()}]"]
        local = {f"{name}:{self.port}" for name in names} | (set(names) if self.port == 80 else set())
        return host.lower() in local or self._is_address_of_ours(host)

    def _is_address_of_ours(self, host: str) -> bool:
        """Whether we listen on all addresses, and this is one: nobody can point an address elsewhere."""
        name, _, port = host.rpartition(":")
        listens, named = ip_of(self.host), ip_of(name.removeprefix("[").removesuffix("]"))
        return port == str(self.port) and listens is not None and listens.is_unspecified and named is not None


def is_public(path: str) -> bool:
    """Whether a path needs no key: the page's own files ask for it themselves, and whether requests can be answered
    is for whatever watches over the daemon.
    """
    return path in ("/", "/favicon.ico", HEALTH) or path.startswith("/page/")


def _as_sent(origin: str) -> str:
    """An origin without its port where that is the scheme's own, which a browser leaves out."""
    scheme, _, host = origin.lower().partition("://")
    return f"{scheme}://{host.removesuffix(f':{PORTS.get(scheme)}')}"


def _shown(text: str) -> str:
    return repr(text[:100]) if text else "missing"


def guards(access: Access) -> list[Middleware]:
    """What checks Host, Origin and key of each request and WebSocket, and tells browsers what allowed pages may do."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.sent_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=("retry-after",),
    )
    return [cors, Middleware(Guard, access=access)]


class Guard:
    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unsniffed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-content-type-options"] = "nosniff"
            await send(message)

        app: ASGIApp = self._app
        if scope["type"] in ("http", "websocket"):
            try:
                self._access.check(scope["path"], Headers(scope=scope))
            except RequestError as error:
                app = error.response(scope["path"])
        await app(scope, receive, send_unsniffed)


Address = tuple[str, int]
LOCAL, REMOTE, STATE, USER, INODE = 1, 2, 3, 7, 9  # columns of the tables in /proc/net
OPEN = (1, 4, 5)  # ESTABLISHED, and FIN_WAIT1 and 2: its program has sent all, and still reads
OVERFLOW = 65534  # how a user namespace shows all users that it has no number for
EVERY_USER = ["0", "0", str((1 << 32) - 1)]  # the one line of /proc/self/uid_map where there is no such user


def tells_users() -> bool:
    return sys.platform == "linux"


def user_of(accepted: Any) -> int | None:
    """The user id of the other end of a socket; None: it cannot be told."""
    try:
        user = find_user(accepted.getpeername()[:2], accepted.getsockname()[:2])
        accepted.getpeername()  # still connected: nobody else can have had this pair of ports meanwhile
    except OSError:
        return None
    has_every_user = user != OVERFLOW or Path("/proc/self/uid_map").read_text().split() == EVERY_USER
    return user if has_every_user else None


def find_user(client: Address, server: Address, folder: Path = Path("/proc/net")) -> int | None:
    """Whose the client's end is by the tables of all sockets; None: it is not there, or no program has it open."""
    wanted = {(_hexadecimal(client, mapped=each), _hexadecimal(server, mapped=each)) for each in (False, True)}
    for table in ("tcp", "tcp6"):
        try:
            lines = (folder / table).read_text().splitlines()[1:]
        except OSError:  # not Linux, or without IPv6
            continue
        for columns in map(str.split, lines):
            if (columns[LOCAL], columns[REMOTE]) in wanted:
                is_open = int(columns[STATE], 16) in OPEN and columns[INODE] != "0"
                return int(columns[USER]) if is_open else None
    return None


def _hexadecimal(address: Address, *, mapped: bool) -> str:
    """An address as the tables have it: words of 32 bits, each with its bytes reversed, and the port.

    `mapped`: an IPv4 address of a socket for IPv6.
    """
    host, port = address
    host = f"::ffff:{host}" if mapped and ":" not in host else host
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = (packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))
    return f"{''.join(words)}:{port:04X}"


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
