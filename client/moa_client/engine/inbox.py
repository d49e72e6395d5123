"""What a conversation's engine handles, one thing at a time: news of the stream, the drafter's results, and calls.

State: what was posted and is not handled yet, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from moa_client.drafting.drafter_thread import DrafterResult
from moa_client.link.availability import NOTHING, Reaction
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened

InboxItem = FrameReceived | StreamOpened | StreamLost | DrafterResult | Callable[[], Reaction]


class Inbox:
    """The queue of one engine."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[InboxItem] = asyncio.Queue()

    @property
    def is_empty(self) -> bool:
        return self._items.empty()

    def post(self, item: InboxItem) -> None:
        """Appends an item; call it on the event loop."""
        self._items.put_nowait(item)

    def wake(self) -> None:
        """Has the loop look at what is due now."""
        self.post(lambda: NOTHING)

    async def take(self, seconds: float | None) -> InboxItem | None:
        """The oldest item, once there is one; None: none has come in `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._items.get()
        except TimeoutError:
            return None

    def take_now(self) -> InboxItem | None:
        """The oldest item; None: there is none."""
        return None if self._items.empty() else self._items.get_nowait()

    def clear(self) -> None:
        while self.take_now() is not None:
            pass
