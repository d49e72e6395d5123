"""Page and endpoint of a daemon that has no server yet."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from moa_client.daemon import web_surfaces
from moa_client.daemon.hub import Hub
from moa_client.daemon.web_surfaces import serve_web_surfaces
from moa_client.settings import ClientSettings


@pytest.mark.parametrize("tells", [True, False])
async def test_where_users_cannot_be_told_apart_a_key_is_made(
    tells: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web_surfaces, "tells_users", lambda: tells)
    shown_by = {"status": lambda: {"phase": "starting"}, "url": "", "web_error": ""}
    daemon = SimpleNamespace(**shown_by, host=None, link=SimpleNamespace(check=None), store=None, set_offline=None)
    hub = cast(Hub, daemon)
    async with AsyncExitStack() as stack:
        await serve_web_surfaces(ClientSettings(endpoint_port=0), hub, stack)
        url, _, key = hub.url.partition("/#key=")
        assert bool(key) is not tells
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        assert (await client.get("/moa/v1/status")).status_code == (200 if tells else 401)
        shown = await client.get("/moa/v1/status", headers={"authorization": f"Bearer {key or 'none'}"})
        assert shown.json() == {"phase": "starting"}
    assert not key or key not in caplog.text
