"""A call without a state to resume: it is made again at another server of the fleet."""

from __future__ import annotations

import pytest
from moa_client.link import calls
from moa_client.link.calls import call_best
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server

from tests.support.scripted_server import MODEL
from tests.unit.moa_client.link.test_dialer import Home


async def address_of(server: Server) -> str:
    return server.address


async def test_a_call_is_made_again_at_a_server_that_the_lost_one_had_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_SECONDS", 0.01)
    home = Home()
    fleet = Fleet([home])
    await fleet.describe()
    home.fail()
    assert await call_best(fleet, MODEL, address_of, seconds=1.0) == home.other.address
    await fleet.close()
