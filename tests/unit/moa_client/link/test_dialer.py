"""A dialer: at home at the user's one server until it is lost, then at the best of its fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.link.dialer import Dialer
from moa_client.link.fleet import Fleet
from moa_client.link.stream import StreamTraffic
from moa_shared.errors import MoaError, OverloadedError, UnavailableError
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.scripted_server import MODEL, ScriptedServer

LOST = UnavailableError("The stream broke.")


@pytest.fixture(autouse=True)
async def within_time() -> AsyncIterator[None]:
    async with asyncio.timeout(20.0):
        yield


class Home(ScriptedServer):
    """The user's server, whose fleet has a second one."""

    def __init__(self, *, named: bool = True) -> None:
        self.other = ScriptedServer("another")
        super().__init__("home", named=[self.other.address] if named else [])

    def peer(self, address: str) -> ScriptedServer:
        assert address == self.other.address
        return self.other


async def dial(dialer: Dialer) -> None:
    await dialer.dial(lambda _: pb.Open(identity=MODEL), None, StreamTraffic())


async def served(server: ScriptedServer) -> tuple[Fleet, Dialer]:
    """A conversation that the server serves."""
    fleet = Fleet([server])
    await fleet.describe()
    dialer = Dialer(fleet, PrefixHashes())
    await dial(dialer)
    return fleet, dialer


@pytest.mark.parametrize(
    ("error", "reason"),
    [(LOST, "The stream broke."), (None, "The former server is silent."), (OverloadedError("full"), "full")],
    ids=["lost", "silent", "full"],
)
async def test_a_lost_one_is_left_for_another(error: MoaError | None, reason: str) -> None:
    home = Home()
    fleet, dialer = await served(home)
    dialer.on_lost(error, was_useful=True)
    home.fail()
    await dial(dialer)
    assert dialer.address == home.other.address
    assert dialer.reason == reason
    await fleet.close()


async def test_a_server_that_goes_away_names_who_continues() -> None:
    home = Home(named=False)
    fleet, dialer = await served(home)
    dialer.on_go_away([home.other.address])
    dialer.on_lost(LOST, was_useful=True)
    await dial(dialer)
    assert dialer.address == home.other.address
    assert dialer.reason == snapshot("The former server is going away.")
    await fleet.close()


async def test_a_server_without_progress_is_avoided() -> None:
    home = Home()
    fleet, dialer = await served(home)
    dialer.on_stalled()
    dialer.on_lost(None, was_useful=True)
    await dial(dialer)
    assert dialer.address == home.other.address
    assert dialer.reason == snapshot("The former server makes no progress.")
    await fleet.close()


async def test_a_new_conversation_begins_at_home_again() -> None:
    home = Home()
    fleet, dialer = await served(home)
    dialer.on_lost(LOST, was_useful=True)
    home.fail()
    await dial(dialer)
    home.failure = None
    again = Dialer(fleet, PrefixHashes())
    await dial(again)
    assert (again.address, dialer.address) == (home.address, home.other.address)
    await fleet.close()


async def several(names: Sequence[str]) -> tuple[Fleet, list[ScriptedServer], Dialer]:
    """A conversation with the first of several servers, which is the nearest."""
    servers = [ScriptedServer(name) for name in names]
    fleet = Fleet(servers)
    await fleet.describe()
    for distance, each in enumerate(servers):
        each.rtt_ms = 20.0 + 100 * distance
    dialer = Dialer(fleet, PrefixHashes())
    await dial(dialer)
    return fleet, servers, dialer


async def test_of_several_another_is_chosen_between_answers_only_if_it_is_clearly_better() -> None:
    fleet, [one, two], dialer = await several(["one", "three"])
    fleet.newest = one
    two.rtt_ms = 19.0
    assert not dialer.chooses_again()
    two.rtt_ms = 1.0
    assert dialer.chooses_again()
    await dial(dialer)
    assert dialer.address == two.address
    assert dialer.reason == snapshot("It is nearer, or has less to do.")
    one.rtt_ms, two.rtt_ms = 1.0, 90.0
    assert not dialer.chooses_again()  # so soon after a change
    await fleet.close()


async def test_of_several_one_that_has_failed_is_the_last_resort() -> None:
    fleet, [one, two], dialer = await several(["one", "three"])
    assert dialer.address == one.address
    dialer.on_lost(LOST, was_useful=False)
    await dial(dialer)
    assert dialer.address == two.address
    await fleet.close()
