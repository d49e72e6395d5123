"""One connection of the HTTP server, which is cut off where a client stalls: uvicorn itself waits for ever."""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0  # until the head of the first request is complete
WRITE_SECONDS = 60.0  # that a client may take nothing in


class BoundedConnection(H11Protocol):
    """Cuts off a client that sends no request, or reads no response, for too long."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._expect_within(HEAD_SECONDS)

    def handle_events(self) -> None:
        super().handle_events()
        if self.scope is not None and not self.flow.write_paused:
            self._stop_clock()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # a response is under way, in which no other fits
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_within(WRITE_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def _expect_within(self, seconds: float) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
