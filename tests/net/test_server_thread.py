"""A replica's server on its own thread: what its clients hear when Ray ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc.aio
import pytest
from moa_server.cluster import server_thread
from moa_server.cluster.rules import Consumption, FleetView, Report, State
from moa_server.cluster.server_thread import ServerThread
from moa_server.verifier import Target

from tests.net.server_peer import Peer, make_host

GRACE_SECONDS = 30.0


async def test_clients_are_told_of_a_replica_that_has_come_since_the_last_beat(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an update Ray ends a replica at the moment at which its successor has started."""
    monkeypatch.setattr(server_thread, "BEAT_SECONDS", 60.0)
    others: tuple[str, ...] = ()
    reports: list[Report] = []

    async def tell(report: Report, taken: Mapping[str, Consumption]) -> FleetView:
        reports.append(report)
        return FleetView(others)

    replica = ServerThread(lambda: make_host(target), "r1", "127.0.0.1", [0], tell)
    await asyncio.to_thread(replica.start)
    async with grpc.aio.insecure_channel(reports[0].address) as channel:
        peer = Peer(channel)
        assert not (await peer.open()).servers
        others = ("successor.example:1",)
        ending = asyncio.create_task(asyncio.to_thread(replica.end, GRACE_SECONDS))
        await peer.done()
        await ending
    assert peer.go_away is not None
    assert tuple(peer.go_away.servers) == others
    assert [report.state for report in reports] == [State.SERVES, State.SERVES, State.DRAINS]
