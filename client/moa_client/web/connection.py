"""One connection of the HTTP server: whose it is, and how long it may wait for its client. uvicorn asks neither.

State: a clock, which runs whenever the client has to do something: send the head of a request, the first or a later
one, or take in a response. Invariant: a connection without a clock has a request under way, or is a WebSocket.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from moa_client.web.access import Access
from moa_client.web.error_form import RequestError

Address = tuple[str, int]
TABLES = ("tcp", "tcp6")
LOCAL, REMOTE, STATE, USER, INODE = 1, 2, 3, 7, 9  # columns of the tables in /proc/net
OPEN = (1, 4, 5)  # ESTABLISHED, and FIN_WAIT1 and 2: its program has sent all, and still reads
OVERFLOW = 65534  # how a user namespace shows all users that it has no number for
EVERY_USER = (0, 0, (1 << 32) - 1)  # the one line of /proc/self/uid_map where there is no such user


class Socket(Protocol):
    """What asyncio and uvloop show of a transport's socket."""

    def getpeername(self) -> Any: ...

    def getsockname(self) -> Any: ...


class Owner(NamedTuple):
    """What the kernel says of a socket."""

    state: int
    user: int
    inode: int  # 0: no program has it open


def tells_users() -> bool:
    return sys.platform == "linux"


def user_of(connection: Socket) -> int | None:
    """The user id of the other end of a connection that was accepted; None: it cannot be told."""
    try:
        ends = connection.getpeername()[:2], connection.getsockname()[:2]
        owner = read_tables(*ends)
        connection.getpeername()  # still connected: nobody else can have had this pair of ports meanwhile
    except OSError:
        return None
    if owner is None or owner.state not in OPEN or not owner.inode:
        return None
    return None if owner.user == OVERFLOW and not _has_every_user() else owner.user


def read_tables(client: Address, server: Address, folder: Path = Path("/proc/net")) -> Owner | None:
    """What the tables of all sockets say of the client's end."""
    wanted = {(_hexadecimal(client, mapped=each), _hexadecimal(server, mapped=each)) for each in (False, True)}
    for table in TABLES:
        try:
            lines = (folder / table).read_text().splitlines()[1:]
        except OSError:  # not Linux, or without IPv6
            continue
        for line in lines:
            columns = line.split()
            if (columns[LOCAL], columns[REMOTE]) in wanted:
                return Owner(int(columns[STATE], 16), int(columns[USER]), int(columns[INODE]))
    return None


def _has_every_user() -> bool:
    try:
        return tuple(int(each) for each in Path("/proc/self/uid_map").read_text().split()) == EVERY_USER
    except (OSError, ValueError):
        return False


def _hexadecimal(address: Address, *, mapped: bool) -> str:
    """An address as the tables have it: words of 32 bits, each with its bytes reversed, and the port.

    `mapped`: an IPv4 address of a socket for IPv6.
    """
    host, port = address
    host = f"::ffff:{host}" if mapped and ":" not in host else host
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = (packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))
    return f"{''.join(words)}:{port:04X}"


SECONDS = {
    "head": 30.0,  # until the head of a request is complete, from its first byte or the connection's beginning on
    "request": 75.0,  # between requests: longer than the pools of usual clients keep one
    "reader": 60.0,  # that a client may take nothing in
}
MOST_REFUSED = 8  # connections of other users that wait to be told so


class BoundedConnection(H11Protocol):
    """Refuses users who may not enter, and cuts off a client that sends no request or reads no response for too long.

    `most`: connections at once; beyond it the one that has waited longest for its client makes room.
    """

    def __init__(self, *args: Any, access: Access, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refusal: RequestError | None = None
        self.waits_since: float | None = None  # for its client
        self._access = access
        self._most = most
        self._waits_for: Literal["head", "request", "reader"] | None = None
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait_for("head")
        self.refusal = self._ask_who_it_is()
        if self.refusal is not None:
            response = self.refusal.response()
            response.headers["connection"] = "close"
            self.app = response
        if not self._finds_room():
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._waits_for == "request":
            self._wait_for("head")
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering and not self.flow.write_paused:
            self._stop_clock()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_clock()  # its own protocol goes on from here, and sends pings
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # may begin with a request that has come meanwhile
        self._unset_keepalive_if_required()  # it stops at the first byte of a head
        if not self._is_answering and self._waits_for is None:
            self._wait_for_next()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # a response is under way, in which no other fits
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for("reader")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_answering:
            self._stop_clock()
        elif not self.transport.is_closing():
            self._wait_for_next()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()

    def _should_upgrade(self) -> bool:
        return self.refusal is None and super()._should_upgrade()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _ask_who_it_is(self) -> RequestError | None:
        """Asks once, before any byte is looked at: later the client may have left, and nobody knows whose it was."""
        if self._access.key:
            return None
        try:
            self._access.check_user(user_of(self.transport.get_extra_info("socket")))
        except RequestError as refusal:
            return refusal
        return None

    def _finds_room(self) -> bool:
        """Whether there is room for this connection, which another one may have to make."""
        connections = cast("Set[Any]", self.connections)
        if self.refusal is None and len(connections) <= self._most:
            return True
        here = [each for each in connections if not each.transport.is_closing()]
        if self.refusal is not None:
            return sum(getattr(each, "refusal", None) is not None for each in here) <= MOST_REFUSED
        if len(here) <= self._most:
            return True
        others = [each for each in here if each is not self and getattr(each, "waits_since", None) is not None]
        if others:
            min(others, key=lambda each: each.waits_since).transport.abort()
        return bool(others)

    def _wait_for_next(self) -> None:
        if self.transport.is_closing():
            self._wait_for("reader")
        else:
            self._wait_for("head" if self.conn.trailing_data[0] else "request")

    def _wait_for(self, what: Literal["head", "request", "reader"]) -> None:
        self._stop_clock()
        self._waits_for, self.waits_since = what, self.loop.time()
        self._clock = self.loop.call_later(SECONDS[what], self._cut_off)

    def _cut_off(self) -> None:
        if self._waits_for == "request" and not self.transport.get_write_buffer_size():
            self.timeout_keep_alive_handler()
        else:
            self.transport.abort()

    def _stop_clock(self) -> None:
        self._waits_for = self.waits_since = None
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
