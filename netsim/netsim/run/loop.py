"""A small event loop on select(2): sockets, devices and timers, in seconds since it was made.

Why not asyncio: its epoll selector rounds time-outs up to whole milliseconds (631 us of median lateness against about
100 us with select), and the emulator's whole point is to be punctual. Invariant: a timer never fires early.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import math
import os
import select
import time
from collections.abc import Callable

Callback = Callable[[], None]
PR_SET_TIMERSLACK = 29  # linux/prctl.h


class Timer:
    """A call at a given time, which can be cancelled."""

    __slots__ = ("callback", "t")

    def __init__(self, t: float, callback: Callback) -> None:
        self.t = t
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """The call will not be made."""
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
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._readers[self._wake_read] = self._drain
        # The kernel may otherwise add 50 us to each wait, to save power.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return time.monotonic() - self._origin

    def read(self, fd: int, callback: Callback | None) -> None:
        """Calls `callback` whenever `fd` can be read; None ends that."""
        if callback is None:
            self._readers.pop(fd, None)
        else:
            self._readers[fd] = callback

    def write(self, fd: int, callback: Callback | None) -> None:
        """Calls `callback` whenever `fd` can be written; None ends that."""
        if callback is None:
            self._writers.pop(fd, None)
        else:
            self._writers[fd] = callback

    def call_at(self, t: float, callback: Callback) -> Timer:
        """Calls once at `t`, or as soon after as the machine allows. An infinite `t` never comes."""
        timer = Timer(t, callback)
        if t < math.inf:
            heapq.heappush(self._timers, (t, next(self._sequence), timer))
        return timer

    def run(self) -> None:
        """Runs until `stop`; returns at once if that was called before."""
        while not self._stopped:
            self.step()

    def step(self) -> None:
        """Waits once, then makes the calls that are due."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        timeout = max(0.0, timers[0][0] - self.time()) if timers else None
        readable, writable, _ = select.select(list(self._readers), list(self._writers), [], timeout)
        # Timers first: a release that is due must not wait for the reading of new packets.
        now = self.time()
        while timers and timers[0][0] <= now:
            callback = heapq.heappop(timers)[2].callback
            if callback is not None:
                callback()
        for fds, table in ((readable, self._readers), (writable, self._writers)):
            for fd in fds:
                callback = table.get(fd)
                if callback is not None:
                    callback()

    def stop(self) -> None:
        """Ends `run` after the present step, for good."""
        self._stopped = True
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the loop is awake already
            os.write(self._wake_write, b".")

    def _drain(self) -> None:
        os.read(self._wake_read, 4096)

    def close(self) -> None:
        """Frees the loop's own descriptors."""
        os.close(self._wake_read)
        os.close(self._wake_write)
