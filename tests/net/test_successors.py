"""A server that goes away names others: the conversation goes on there to the letter, and only where it may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import Committed, Event
from moa_client.device.loading import Device
from moa_client.engine.engine import ClientEngine
from moa_client.link.channel import Link
from moa_client.link.routing.route import AnyLink, connect_any
from moa_client.link.security import Security
from moa_server.target import Target
from moa_shared.programs.addresses import MOST_SUCCESSORS
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_talk import PROMPT, Screen, slow_device, watch
from tests.net.fleet_servers import SAMPLED, WAITING, Servers, address, leave, serving_now, told
from tests.net.server_peer import VOCAB, plain_text, until
from tests.support.messages import steady


@asynccontextmanager
async def talking_to(link: AnyLink, held: Device) -> AsyncIterator[ClientEngine]:
    engine = ClientEngine(link, held, VOCAB, Codec.INT4, WAITING)
    try:
        yield engine
    finally:
        await engine.close()


async def drained_in_the_answer(engine: ClientEngine, servers: Servers, name: str, screen: Screen) -> None:
    """Asks, and ends the server in the middle of its answer; it has time for a last word."""
    ending: list[asyncio.Task[None]] = []

    async def end(event: Event) -> None:
        if isinstance(event, Committed) and len(screen.committed) > 5 and not ending:
            ending.append(asyncio.create_task(leave(servers, name)))

    await watch(engine, screen, PROMPT, SAMPLED, end)
    await asyncio.gather(*ending)


async def test_an_answer_goes_on_at_the_server_that_is_named(target: Target, servers: Servers) -> None:
    await servers.start("two")
    await servers.start("one", peers=f"127.0.0.1:1,{address(servers, 'two')}")  # nobody listens on the first
    screen, again = Screen(), Screen()
    async with (
        connect_any([Link(address(servers, "one"), 5.0, 20.0)]) as link,
        talking_to(link, slow_device(target)) as engine,
    ):
        await drained_in_the_answer(engine, servers, "one", screen)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert await serving_now(engine, servers) == "two"
        assert told(screen) == snapshot(
            ["127.0.0.1:PORT answers now instead of 127.0.0.1:PORT. The former server is going away."]
        )

        await servers.start("one")  # it is back: who is served stays, and new conversations begin there
        async with talking_to(link, slow_device(target)) as other:
            await watch(other, again, PROMPT, SAMPLED)
            assert await serving_now(other, servers) == "one"
        assert again.committed == screen.committed
        assert await serving_now(engine, servers) == "two"


async def test_a_new_conversation_finds_the_successor_of_a_server_that_is_gone(
    target: Target, servers: Servers
) -> None:
    await servers.start("two")
    await servers.start("one", peers=address(servers, "two"))
    first, second = Screen(), Screen()
    async with connect_any([Link(address(servers, "one"), 5.0, 20.0)]) as link:
        async with talking_to(link, slow_device(target)) as engine:
            await drained_in_the_answer(engine, servers, "one", first)
        async with talking_to(link, slow_device(target)) as engine:
            await watch(engine, second, PROMPT, SAMPLED)
            assert await serving_now(engine, servers) == "two"
    assert first.committed == second.committed == plain_text(target, PROMPT, SAMPLED)[0]


async def test_who_comes_while_a_server_drains_is_told_where_to_go(target: Target, servers: Servers) -> None:
    await servers.start("two")
    one = await servers.start("one", peers=address(servers, "two"))
    one.host.lifecycle.drain()
    screen = Screen()
    async with (
        connect_any([Link(address(servers, "one"), 5.0, 20.0)]) as link,
        talking_to(link, slow_device(target)) as engine,
    ):
        await watch(engine, screen, PROMPT, SAMPLED)
        assert await serving_now(engine, servers) == "two"
    assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]


async def test_servers_that_name_each_other_and_are_both_gone(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("two", peers=address(servers, "one"))
    here = address(servers, "one")
    await servers.stop("one")
    one = await servers.start("one", peers=address(servers, "two"))
    screen = Screen()
    async with (
        connect_any([Link(here, 5.0, 20.0)]) as link,
        talking_to(link, slow_device(target)) as engine,
    ):
        working = [asyncio.create_task(until(lambda: len(screen.committed) > 5))]

        async def both_leave() -> None:
            await working[0]
            one.host.lifecycle.drain()
            servers.running["two"].host.lifecycle.drain()
            await servers.stop("one")
            await servers.stop("two")
            await servers.start("one")

        leaving = asyncio.create_task(both_leave())
        await watch(engine, screen, PROMPT, SAMPLED)
        await leaving
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert await serving_now(engine, servers) == "one"


async def test_a_successor_of_another_model_is_left_out_by_name(target: Target, servers: Servers) -> None:
    await servers.start("other", model="another")
    one = await servers.start("one", peers=address(servers, "other"))
    screen = Screen()
    async with (
        connect_any([Link(address(servers, "one"), 5.0, 20.0)]) as link,
        talking_to(link, slow_device(target)) as engine,
    ):
        await watch(engine, screen, PROMPT, SAMPLED)
        attending = engine.attend()
        stopping = asyncio.create_task(leave(servers, "one"))
        waiting = asyncio.create_task(anext(attending))
        await stopping
        assert isinstance(link, Link)
        await until(lambda: link.successors is not None and link.successors.servers[1].served is not None)
        assert link.successors is not None
        assert [steady(line) for line in link.successors.skipped] == snapshot(
            [
                "127.0.0.1:PORT is left out for now: There is no moa server at 127.0.0.1:PORT: the connection was refused.",
                "127.0.0.1:PORT is left out: it serves another, not tiny.",
            ]
        )
        assert servers.sessions("other") == 0
        await servers.start("one", port=one.port)
        again = Screen()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await attending.aclose()
        await watch(engine, again, [7, 8], SAMPLED)
        assert await serving_now(engine, servers) == "one"


async def test_names_are_few_and_lead_to_nobody_s_own_machine(caplog: pytest.LogCaptureFixture) -> None:
    tls = Security(tls=True)
    far = Link("198.51.100.1:5", 1.0, 1.0, tls)
    async with connect_any([far, Link("198.51.100.2:5", 1.0, 1.0, tls)]) as route:
        assert not isinstance(route, Link)
        route.follow([f"198.51.100.{number}:7" for number in range(20)], far)
        route.follow([f"203.0.113.{number}:7" for number in range(20)], far)
        assert len(route.servers) == 2 + MOST_SUCCESSORS
        route.servers = route.servers[:2]
        here = ["localhost:1", "127.0.0.1:2", "[::1]:3", "0.0.0.0:4", "a.localhost:5", "[::ffff:127.0.0.1]:6"]
        route.follow([*here, "127.1:1", "no address", "x:0", "x:99999", "http://x:1"], far)
        assert len(route.servers) == 2


async def test_a_key_is_not_sent_in_the_clear_to_whom_a_server_names(caplog: pytest.LogCaptureFixture) -> None:
    near = Link("127.0.0.1:5", 1.0, 1.0, Security(key="secret"))
    async with connect_any([near, Link("127.0.0.1:6", 1.0, 1.0)]) as route:
        assert not isinstance(route, Link)
        route.follow(["198.51.100.1:7"], near)
        assert [each.link.address for each in route.servers] == ["127.0.0.1:5", "127.0.0.1:6"]
    assert caplog.messages == snapshot(
        [
            "127.0.0.1:5 names 198.51.100.1:7: not followed. The API key for 198.51.100.1:7 would be sent without encryption."
        ]
    )
