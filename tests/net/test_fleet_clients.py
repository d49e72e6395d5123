"""Replicas that a client has heard of before its server is gone: a killed one says no last word."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import Committed, Event
from moa_client.engine.engine import ClientEngine
from moa_client.link import fleet
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import OverloadedError

from netsim import open_link
from tests.net.client_talk import PROMPT, Screen, slow_device, watch
from tests.net.fleet_servers import SAMPLED, Servers, address, serving_now, told
from tests.net.server_peer import plain_text, until
from tests.net.test_successors import talking_to
from tests.support.messages import steady


async def kill(servers: Servers, name: str) -> None:
    """Ends a server that names nobody any more."""
    servers.running[name].host.lifecycle.fleet.update([])
    await servers.stop(name)


async def killed_in_the_answer(engine: ClientEngine, servers: Servers, name: str) -> Screen:
    screen = Screen()

    async def end(event: Event) -> None:
        if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
            screen.cuts += 1
            await kill(servers, name)

    await watch(engine, screen, PROMPT, SAMPLED, end)
    assert screen.cuts == 1
    return screen


async def test_an_answer_goes_on_at_a_replica_that_a_killed_server_had_named(target: Target, servers: Servers) -> None:
    await servers.start("two")
    await servers.start("one", peers=address(servers, "two"))
    async with connect([Server(address(servers, "one"), 5.0, 20.0)]) as link:
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:
            before = Screen()
            await watch(engine, before, PROMPT, SAMPLED)
            assert await serving_now(engine, servers) == "one"  # which answers: nobody else is asked
            assert servers.sessions("two") == 0
        async with talking_to(link, slow_device(target)) as engine:
            screen = await killed_in_the_answer(engine, servers, "one")
            assert screen.committed == before.committed == plain_text(target, PROMPT, SAMPLED)[0]
            assert await serving_now(engine, servers) == "two"
            [line] = told(screen)
            assert line.startswith("127.0.0.1:PORT answers now instead of 127.0.0.1:PORT.")


async def test_an_answer_goes_on_elsewhere_when_the_way_to_its_server_is_cut(target: Target, servers: Servers) -> None:
    """A partition: nothing is refused, and nothing comes."""
    await servers.start("two")
    one = await servers.start("one", peers=address(servers, "two"))
    screen = Screen()
    async with (
        open_link("perfect", upstream=f"127.0.0.1:{one.port}") as wire,
        connect([Server(wire.target, 5.0, 20.0)]) as link,
    ):
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:

            async def cut(event: Event) -> None:
                if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                    screen.cuts += 1
                    await wire.cut()

            await watch(engine, screen, PROMPT, SAMPLED, cut)
            assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
            assert await serving_now(engine, servers) == "two"


async def test_a_full_server_sends_an_answer_to_a_replica_that_it_had_named(target: Target, servers: Servers) -> None:
    await servers.start("two")
    one = await servers.start("one", peers=address(servers, "two"))
    screen = Screen()
    async with connect([Server(address(servers, "one"), 5.0, 20.0)]) as link:
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:

            async def refuse(event: Event) -> None:
                if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                    screen.cuts += 1
                    [live] = one.host.services.registry.live_sessions
                    assert live.stream.listener is not None
                    live.stream.listener.on_failure(OverloadedError("There is no room."))

            await watch(engine, screen, PROMPT, SAMPLED, refuse)
            assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
            assert await serving_now(engine, servers) == "two"
            assert told(screen) == snapshot(["127.0.0.1:PORT answers now instead of 127.0.0.1:PORT. There is no room."])


async def test_a_client_hears_of_replicas_that_come_later(
    target: Target, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.0)
    one = await servers.start("one")
    await servers.start("two")
    async with connect([Server(address(servers, "one"), 5.0, 20.0)]) as link:
        [server] = link.servers
        await link.describe()
        assert server.named == ()
        one.host.lifecycle.fleet.update([address(servers, "two")])
        async with talking_to(link, slow_device(target)) as engine:
            await watch(engine, Screen(), PROMPT, SAMPLED)
            await until(lambda: server.named == (address(servers, "two"),))
            rtt_ms = link.rtt_ms
            link.hear_names()
            await until(lambda: link._hearing is None)
            assert link.rtt_ms == rtt_ms  # of the description that opened the connection


async def test_a_client_of_two_replicas_continues_when_both_were_replaced(target: Target, servers: Servers) -> None:
    """It hears of others with each stream, also from a server that nobody is at when it ends."""
    await servers.start("one")
    await servers.start("two")
    screens = [Screen() for _ in range(3)]
    async with connect(servers.links()) as link:
        await link.describe()

        async def ask(screen: Screen) -> str:
            async with talking_to(link, slow_device(target)) as engine:
                await watch(engine, screen, PROMPT, SAMPLED)
                return await serving_now(engine, servers)

        last = await ask(screens[0])
        [first] = servers.running.keys() - {last}
        await servers.start("three")
        servers.running[last].host.lifecycle.fleet.update([address(servers, "three")])
        await kill(servers, first)
        assert await ask(screens[1]) == last
        await servers.start("four")
        servers.running["three"].host.lifecycle.fleet.update([address(servers, "four")])
        await kill(servers, last)
        assert await ask(screens[2]) == "three"
    assert [screen.committed for screen in screens] == 3 * [plain_text(target, PROMPT, SAMPLED)[0]]


async def test_a_replica_of_the_same_execution_goes_before_one_of_another(target: Target, servers: Servers) -> None:
    """Also if the other one is named first, and answers first."""
    await servers.start("odd", execution=b"o" * 32, level="bf16")
    await servers.start("two")
    await servers.start("one", peers=f"{address(servers, 'odd')},{address(servers, 'two')}")
    async with connect([Server(address(servers, "one"), 5.0, 20.0)]) as link:
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:
            screen = await killed_in_the_answer(engine, servers, "one")
            assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
            assert await serving_now(engine, servers) == "two"
    assert servers.sessions("odd") == 0


async def test_a_replica_of_another_execution_is_the_last_resort_and_said_by_name(
    target: Target, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    await servers.start("odd", execution=b"o" * 32, level="bf16")
    await servers.start("one", peers=address(servers, "odd"))
    async with connect([Server(address(servers, "one"), 5.0, 20.0)]) as link:
        await link.describe()
        async with talking_to(link, slow_device(target)) as engine:
            screen = await killed_in_the_answer(engine, servers, "one")
            assert await serving_now(engine, servers) == "odd"
    [line] = told(screen)
    assert line.endswith(" It computes at bf16: no server that computes as before has answered.")
    assert [steady(line) for line in caplog.messages if "resort" in line] == snapshot(
        ["127.0.0.1:PORT is the last resort: it computes at bf16, not float32."]
    )


async def test_a_replica_that_is_named_by_its_number_has_its_server_s_certificate() -> None:
    tls = Security(tls=True)
    named, numbered = Server("gpu.example:5", 1.0, 1.0, tls), Server("198.51.100.1:5", 1.0, 1.0, tls)
    by_number, by_name = named.peer("198.51.100.2:6"), named.peer("two.example:6")
    others = [by_number, by_name, by_number.peer("198.51.100.3:6"), numbered.peer("198.51.100.2:6")]
    names = [each.security.server_name for each in others]
    for each in (named, numbered, *others):
        await each.close()
    assert names == ["gpu.example", "", "gpu.example", ""]
