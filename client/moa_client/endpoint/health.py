"""Whether requests can be answered, for what watches over the daemon: load balancers, compose files, scripts.

State: what the server's newest answer was, which counts for a few seconds, so that whoever asks here often does not ask
the server as often.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from moa_shared.errors import MoaError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.web.access import HEALTH

FRESH_SECONDS = 5.0  # watchers ask every 5 to 30
ASK_SECONDS = 2.0  # they wait for at least that long


class Health:
    """Whether requests can be answered.

    Args:
        status: of the daemon, as its surfaces get it.
        ask: asks whether the server is there; raises MoaError where it is not.
        clock: in seconds.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        ask: Callable[[], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = status
        self._ask = ask
        self._clock = clock
        self._asked_at = -math.inf
        self._failure = ""  # of the server; empty: it has answered
        self._asking = asyncio.Lock()

    async def handle(self, request: Request) -> Response:
        """Whether requests can be answered: 200, or 503 with the reason; needs no key."""
        status = self._status()
        reason = await self._reason(status)
        if reason:
            fields = {"status": "unavailable", "reason": reason}
        else:
            fields = {"status": "ok", "link": status["state"], "model": status["target"], "rtt_ms": status["rtt_ms"]}
        return JSONResponse(fields, 503 if reason else 200, {"cache-control": "no-store"})

    async def _reason(self, status: Mapping[str, Any]) -> str:
        """Why requests cannot be answered; empty: they can."""
        if status["phase"] != "ready":
            return f"The daemon is not ready: {status['phase']}"
        if not status["wants_online"]:
            return "The daemon is offline, as its user wants it."
        async with self._asking:
            if self._clock() >= self._asked_at + FRESH_SECONDS:
                self._failure = await self._server_failure()
                self._asked_at = self._clock()
        return self._failure

    async def _server_failure(self) -> str:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await self._ask()
        except MoaError as error:
            return error.message
        except TimeoutError:
            return f"The server has not answered within {ASK_SECONDS:g} s."
        return ""


def health_route(health: Health) -> BaseRoute:
    """The route."""
    return Route(HEALTH, health.handle)
