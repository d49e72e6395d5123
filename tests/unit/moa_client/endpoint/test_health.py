from __future__ import annotations

import asyncio
from typing import Any

import httpx
from moa_client.endpoint.routes import FRESH_SECONDS, Health, health_route
from moa_client.web.access import Access
from moa_client.web.server import make_app
from moa_shared.errors import UnavailableError

READY = {"phase": "ready", "wants_online": True, "state": "good", "target": "tiny", "rtt_ms": 12.0, "conversations": 3}


class Daemon:
    """A daemon with a status and a server that a test changes."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = dict(READY)
        self.failure: UnavailableError | None = None
        self.asked = 0
        self.now = 100.0
        health = Health(lambda: self.status, self._ask, lambda: self.now)
        app = make_app([health_route(health)], Access("127.0.0.1", 8674, key="k" * 16))
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8674")

    async def _ask(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure

    async def health(self) -> tuple[int, dict[str, Any]]:
        response = await self._client.get("/health")
        return response.status_code, response.json()


async def test_it_needs_no_key_and_tells_of_no_conversation() -> None:
    assert await Daemon().health() == (200, {"status": "ok", "link": "good", "model": "tiny", "rtt_ms": 12.0})


async def test_the_server_is_asked_once_for_many_and_again_later() -> None:
    daemon = Daemon()
    assert {code for code, _ in await asyncio.gather(*(daemon.health() for _ in range(5)))} == {200}
    assert daemon.asked == 1
    daemon.failure = UnavailableError("Nothing answers at gpu:50051.", hint="Start it.")
    assert (await daemon.health())[0] == 200
    daemon.now += FRESH_SECONDS
    assert await daemon.health() == (503, {"status": "unavailable", "reason": "Nothing answers at gpu:50051."})
    daemon.failure = None
    daemon.now += FRESH_SECONDS
    assert (await daemon.health())[0] == 200


async def test_a_daemon_that_is_not_ready_or_kept_offline_answers_nobody() -> None:
    daemon = Daemon()
    for more, reason in (
        ({"phase": "loading the drafter"}, "The daemon is not ready: loading the drafter"),
        ({"phase": "ready", "wants_online": False}, "The daemon is offline, as its user wants it."),
    ):
        daemon.status |= more
        assert await daemon.health() == (503, {"status": "unavailable", "reason": reason})
    assert daemon.asked == 0
