"""A small event loop on select(2): sockets, devices and timers, in seconds since it was made; and addresses.

Why not asyncio: its epoll selector rounds time-outs up to whole milliseconds (631 us of median lateness against about
100 us with select), and the emulator's whole point is to be punctual. Invariant: a timer never fires early.
"""

import contextlib
import ctypes
import errno
import heapq
import itertools
import math
import os
import select
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from netsim.errors import UsageError

Callback = Callable[[], object]


class Timer:
    """A call at a given time, which can be cancelled."""

    __slots__ = ("callback", "t")

    def __init__(self, t: float, callback: Callback) -> None:
        self.t = t
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """An event loop; owns readers, writers and timers. One thread runs it; a signal handler may call `stop`."""

    def __init__(self) -> None:
        self._origin = time.monotonic()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = itertools.count()
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._readers[self._wake_read] = lambda: os.read(self._wake_read, 4096)
        # The kernel may otherwise add 50 us to each wait, to save power.
        ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK

    def time(self) -> float:
        return time.monotonic() - self._origin

    def read(self, fd: int, callback: Callback | None) -> None:
        """Calls `callback` whenever `fd` can be read; None ends that."""
        self._watch(self._readers, fd, callback)

    def write(self, fd: int, callback: Callback | None) -> None:
        """Calls `callback` whenever `fd` can be written; None ends that."""
        self._watch(self._writers, fd, callback)

    def _watch(self, table: dict[int, Callback], fd: int, callback: Callback | None) -> None:
        if callback is None:
            table.pop(fd, None)
        else:
            table[fd] = callback

    def call_at(self, t: float, callback: Callback) -> Timer:
        """Calls once at `t`, or as soon after as the machine allows. An infinite `t` never comes."""
        timer = Timer(t, callback)
        if t < math.inf:
            heapq.heappush(self._timers, (t, next(self._sequence), timer))
        return timer

    def run(self) -> None:
        """Runs until `stop`; returns at once if that was called before."""
        timers = self._timers
        while not self._stopped:
            while timers and timers[0][2].callback is None:
                heapq.heappop(timers)
            timeout = max(0.0, timers[0][0] - self.time()) if timers else None
            readable, writable, _ = select.select(list(self._readers), list(self._writers), [], timeout)
            # Timers first: a release that is due must not wait for the reading of new packets.
            now = self.time()
            while timers and timers[0][0] <= now:
                if (callback := heapq.heappop(timers)[2].callback) is not None:
                    callback()
            for fds, table in ((readable, self._readers), (writable, self._writers)):
                for fd in fds:
                    if (callback := table.get(fd)) is not None:
                        callback()

    def stop(self) -> None:
        """Ends `run` after the present step, for good."""
        self._stopped = True
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the loop is awake already
            os.write(self._wake_write, b".")

    def close(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, what: str) -> Address:
    """Reads an address; without a host it is loopback. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise UsageError(
            f"{what}: {text!r} is not an address.",
            hint="Write HOST:PORT or :PORT, for example 127.0.0.1:50051 or [::1]:50051.",
        )
    return Address(bare or "127.0.0.1", int(port))


def resolve(address: Address, what: str) -> tuple[socket.AddressFamily, Address]:
    """Family and numeric address; raises UsageError."""
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"{what}: host {address.host!r} is not known ({error.strerror}).") from error
    return family, Address(str(sockaddr[0]), int(sockaddr[1]))


def listen(address: Address) -> socket.socket:
    """A non-blocking listening socket; raises UsageError if the port is taken."""
    family, numeric = resolve(address, "listen")
    if numeric.port == 0:
        # Bound in two steps: only a port asked for by number survives when the socket stops listening for a while.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(tuple(numeric))
            numeric = Address(numeric.host, probe.getsockname()[1])
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(tuple(numeric))
        sock.listen(128)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {numeric.port} is in use on {numeric.host}.",
                hint="Choose another with --listen; port 0 takes a free one.",
            ) from error
        raise UsageError(f"Cannot listen on {numeric}: {error.strerror}.") from error
    sock.setblocking(False)
    return sock
