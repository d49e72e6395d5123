"""Bounds how many answers run at once: others wait in the order in which they came, up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moa_shared.errors import OverloadedError

MOST_WAITING = 64  # each is one open connection


class AnswerSlots:
    """Lets a number of answers run.

    Args:
        running: how many at once.
        waiting: how many more may wait.
    """

    def __init__(self, running: int, waiting: int = MOST_WAITING) -> None:
        self._free = asyncio.Semaphore(running)
        self._waiting = 0
        self._most_waiting = waiting

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, and has it.

        Raises:
            OverloadedError: too many wait.
        """
        if self._free.locked() and self._waiting >= self._most_waiting:
            raise OverloadedError(f"{self._waiting} requests wait already.", hint="Try again in a few seconds.")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
