"""Replicas of a fleet: server processes at addresses of their own that are ended and started again there.

State: of each address, the process that serves there, or none. Invariants: a replica keeps its address, and none is
left running: whoever closes one that another thread starts waits until it has started.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from moa_shared.errors import InternalError, UnavailableError

from moa_bench.harness.child import Child


@dataclass(frozen=True, slots=True)
class Restart:
    """From the signal until the server could be called again, and when its process had ended."""

    down_s: float
    ended_s: float
    up_s: float


class Replica:
    """A server at one address.

    Args:
        start: starts it there.
        end_s: that it may take to end.
    """

    def __init__(self, address: str, start: Callable[[int], AbstractContextManager[Child]], end_s: float) -> None:
        self.address = address
        self._start = start
        self._end_s = end_s
        self._stack = ExitStack()
        self._child: Child | None = None
        self._lock = threading.RLock()

    @property
    def is_up(self) -> bool:
        return self._child is not None

    def start(self) -> None:
        """Returns when it can be called.

        Raises:
            UnavailableError: it does not start.
        """
        with self._lock:
            self._child = self._stack.enter_context(self._start(int(self.address.rpartition(":")[2])))

    def end(self, *, kill: bool) -> float:
        """Ends it and waits for its end, whose time it gives.

        Raises:
            UnavailableError: it does not end, or ends with an error.
        """
        if self._child is None:
            raise InternalError(f"The server at {self.address} is not running.")
        process, self._child = self._child.process, None
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            code = process.wait(self._end_s)
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"The server has not ended within {self._end_s:g} s.", hint="Look at its log."
            ) from None
        ended_s = time.perf_counter()
        self._stack.close()
        if code != 0 and not kill:
            raise UnavailableError(f"The server ended with status {code}.", hint="Look at its log.")
        return ended_s

    def restart(self, *, kill: bool, away_s: float = 0.0) -> Restart:
        """Ends it and starts it again, so many seconds later.

        Raises:
            UnavailableError: as `start` and `end`.
        """
        with self._lock:
            down_s = time.perf_counter()
            ended_s = self.end(kill=kill)
            time.sleep(away_s)
            self.start()
            return Restart(down_s, ended_s, time.perf_counter())

    def close(self) -> None:
        with self._lock:
            self._child = None
            self._stack.close()


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine where nothing listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
