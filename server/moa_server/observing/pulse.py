"""The event loop's pulse: how late it turns, and when it last did.

State: the newest beat. Written on the loop; another thread may read it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEAT_SECONDS = 0.1


class Pulse:
    """Beats ten times a second.

    Args:
        on_lag: called with how many seconds too late each beat came.
    """

    def __init__(self, on_lag: Callable[[float], None]) -> None:
        self._on_lag = on_lag
        self._due = 0.0
        self._next: asyncio.TimerHandle | None = None
        self.last_beat: float | None = None  # time.monotonic

    def start(self) -> None:
        """Begins on the running event loop."""
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    @property
    def silent_seconds(self) -> float:
        """Since the newest beat; 0 before the first."""
        return 0.0 if self.last_beat is None else time.monotonic() - self.last_beat

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self.last_beat = now = time.monotonic()
        self._due = now + BEAT_SECONDS
        self._next = loop.call_later(BEAT_SECONDS, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._on_lag(max(0.0, time.monotonic() - self._due))
        self._schedule(loop)
