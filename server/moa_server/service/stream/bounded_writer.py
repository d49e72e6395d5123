"""Hands messages to gRPC, and gives up a client that takes in too little of them.

State: how long writes have waited beyond what their bytes excuse. Invariant: a client that takes in less than
LEAST_RATE over the patience is given up, whether it takes nothing or one small frame now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from google.protobuf.message import Message
from moa_shared.errors import UnavailableError

LEAST_RATE = 256.0  # bytes a second; GPRS carries ten times as much

Sent = TypeVar("Sent", bound=Message)


class SlowReaderLimit:
    """How far a client lags: waiting adds up, bytes that it takes in pay for it. Pure."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._owed_seconds = 0.0

    @property
    def left_seconds(self) -> float:
        """How long the next write may wait."""
        return max(0.0, self._patience_seconds - self._owed_seconds)

    def on_written(self, nbytes: int, waited_seconds: float) -> None:
        """Records that a message of `nbytes` was taken in after `waited_seconds`."""
        self._owed_seconds = max(0.0, self._owed_seconds + waited_seconds - nbytes / LEAST_RATE)


class BoundedWriter(Generic[Sent]):
    """Writes one call's messages, as long as its client takes them in.

    Args:
        write: hands one message to gRPC.
        patience_seconds: how long a client may read almost nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        write: Callable[[Sent], Awaitable[None]],
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._patience_seconds = patience_seconds
        self._pace = SlowReaderLimit(patience_seconds)
        self._clock = clock

    async def write(self, message: Sent) -> int:
        """Writes one message; returns how many bytes it had.

        Raises:
            UnavailableError: the client reads too little.
        """
        began = self._clock()
        try:
            async with asyncio.timeout(self._pace.left_seconds):
                await self._write(message)
        except TimeoutError:
            raise UnavailableError(
                f"The client has read almost nothing for {self._patience_seconds:g} s.",
                hint="Call again to resume.",
            ) from None
        nbytes = message.ByteSize()
        self._pace.on_written(nbytes, self._clock() - began)
        return nbytes
