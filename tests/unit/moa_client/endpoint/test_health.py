from __future__ import annotations

import asyncio
from typing import Any

import httpx
from moa_client.endpoint.routes import FRESH_SECONDS, Health, health_route
from moa_client.web.access import Access
from moa_client.web.server import make_app
from moa_shared.errors import UnavailableError

READY = {"phase": "ready", "wants_online": True, "state": "good", "target": "tiny", "rtt_ms": 12.0, "conversations": 3}
AWAY = UnavailableError("Nothing answers at gpu:50051.", hint="Start it.")


async def test_health_needs_no_key_and_asks_the_server_once_for_many() -> None:
    status: dict[str, Any] = dict(READY)
    asked, failures, now = 0, list[UnavailableError](), 100.0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if failures:
            raise failures[-1]

    app = make_app([health_route(Health(lambda: status, ask, lambda: now))], Access("127.0.0.1", 8674, key="k" * 16))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8674") as client:

        async def health() -> tuple[int, str]:
            response = await client.get("/health")
            return response.status_code, response.json().get("reason", "")

        fields = {"status": "ok", "link": "good", "model": "tiny", "rtt_ms": 12.0}  # nothing of conversations
        assert (await client.get("/health")).json() == fields
        assert {code for code, _ in await asyncio.gather(*(health() for _ in range(5)))} == {200}
        failures.append(AWAY)
        assert (asked, await health()) == (1, (200, ""))
        now += FRESH_SECONDS
        assert await health() == (503, AWAY.message)
        failures.clear()
        now += FRESH_SECONDS
        assert (await health(), asked) == ((200, ""), 3)
        for more, reason in (
            ({"phase": "loading the drafter"}, "The daemon is not ready: loading the drafter"),
            ({"phase": "ready", "wants_online": False}, "The daemon is offline, as its user wants it."),
        ):
            status |= more
            assert (await health(), asked) == ((503, reason), 3)
