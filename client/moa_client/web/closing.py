"""Tells the requests under way that the server closes, so that each ends in its own form."""

from __future__ import annotations

import asyncio


class Closing:
    """Whether the server closes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def begin(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
