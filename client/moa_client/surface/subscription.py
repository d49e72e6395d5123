"""Updates on their way to one surface: kept in order until it reads them, up to a bound.

State: what was not read yet. Invariant: nothing is lost in between; a surface that lags too far is cut off and must
open the conversation again, which gives it everything as it is then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from moa_shared.errors import OverloadedError

from moa_client.conversation.updates import Update

MOST_UNREAD = 10_000  # updates: an answer of as many tokens


class Subscription:
    """One surface's updates."""

    def __init__(self, most_unread: int = MOST_UNREAD) -> None:
        self._most_unread = most_unread
        self._unread: deque[Update] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._lags = False

    def push(self, update: Update) -> None:
        """Adds an update; one too many cuts the surface off."""
        if len(self._unread) >= self._most_unread:
            self._lags = True
            self._unread.clear()
        if not self._lags:
            self._unread.append(update)
        self._arrived.set()

    def close(self) -> None:
        """Nothing more will come; what is here may still be read."""
        self._is_closed = True
        self._arrived.set()

    async def updates(self) -> AsyncIterator[Update]:
        """What has come and comes, until the conversation is closed."""
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._lags:
                raise OverloadedError(
                    f"More than {self._most_unread} events were not read.", hint="Open the conversation again."
                )
            if self._is_closed:
                return
            self._arrived.clear()
            await self._arrived.wait()
