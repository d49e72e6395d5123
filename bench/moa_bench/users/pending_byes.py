"""Goodbyes to a server that go on while a user asks the next question: nobody waits for one at the end of an answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class PendingByes:
    """Goodbyes under way. Over a long link each takes a round trip."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, goodbye: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(goodbye)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    async def finish(self) -> None:
        """Waits for those that are left."""
        await asyncio.gather(*self._tasks)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)  # one that has failed is told at the end
