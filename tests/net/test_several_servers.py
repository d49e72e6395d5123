"""Several servers of one model: an answer goes on to the letter when its server is lost, and no other model slips in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Ended, Event, LinkState
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.channel import Link
from moa_client.link.routing.route import Route, connect_any
from moa_client.link.stream import Traffic
from moa_server.target import Target
from moa_shared.errors import OverloadedError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, slow_device, watch
from tests.net.fleet_servers import GREEDY, SAMPLED, WAITING, Servers, serving_now, told
from tests.net.server_peer import VOCAB, Peer, channel_to, plain_text, until
from tests.support.messages import raises, steady


@asynccontextmanager
async def talking_to(
    links: Sequence[Link], held: Device, settings: DraftingSettings = WAITING
) -> AsyncIterator[tuple[Route, ClientEngine]]:
    async with connect_any(links) as route:
        assert isinstance(route, Route)
        await route.describe()
        engine = ClientEngine(route, held, VOCAB, Codec.INT4, settings)
        try:
            yield route, engine
        finally:
            await engine.close()


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafts", [True, False], ids=["drafting", "without a drafter"])
async def test_an_answer_goes_on_at_the_other_server(
    target: Target, servers: Servers, settings: AnswerSettings, drafts: bool
) -> None:
    await servers.start("one")
    await servers.start("two")
    screen = Screen()
    held = slow_device(target) if drafts else device(target, "none")
    async with talking_to(servers.links(), held) as (route, engine):

        async def kill(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await servers.stop(await serving_now(engine, servers))

        await watch(engine, screen, PROMPT, settings, kill)
        assert engine.status.server == route.address == engine.connection.dialer.address
        assert screen.committed == plain_text(target, PROMPT, settings)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert len(told(screen)) == 1
        left = await serving_now(engine, servers)
        assert told(screen)[0].startswith(f"{left} (127.0.0.1:PORT) answers now instead of ")
        after = Screen()
        await watch(engine, after, [9, 9, 4], settings)  # it stays where it is
        assert after.committed == plain_text(target, [*PROMPT, *screen.committed, 9, 9, 4], settings)[0]
        assert not after.notices


async def test_a_server_that_is_full_is_passed_over(target: Target, servers: Servers) -> None:
    """Also if that is found out only when a stream is opened there."""
    one = await servers.start("one", max_streams=1)
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine), channel_to(one) as channel:
        route.servers[0].rtt_ms, route.servers[1].rtt_ms = 1.0, 50.0
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        await watch(engine, screen, PROMPT, SAMPLED)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert await serving_now(engine, servers) == "two"
        await peer.bye()


async def test_a_server_that_refuses_in_an_answer_is_left_for_the_other(
    target: Target, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        route.servers[0].rtt_ms, route.servers[1].rtt_ms = 1.0, 50.0

        async def refuse(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                [live] = one.host.services.registry.live_sessions
                assert live.stream.listener is not None
                live.stream.listener.on_failure(OverloadedError("There is no room."))

        await watch(engine, screen, PROMPT, SAMPLED, refuse)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert told(screen) == snapshot(
            ["two (127.0.0.1:PORT) answers now instead of one (127.0.0.1:PORT). There is no room."]
        )


async def test_a_server_that_goes_away_is_left_at_once(target: Target, servers: Servers) -> None:
    """Between answers: the stream ends, and the conversation is at the other server before the next question."""
    one = await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        route.servers[0].rtt_ms, route.servers[1].rtt_ms = 1.0, 50.0
        await watch(engine, screen, PROMPT, GREEDY)
        one.host.lifecycle.drain()
        attending = engine.attend()
        async with asyncio.timeout(30.0):
            while not screen.notices:
                screen.take(await anext(attending))
        await attending.aclose()
        assert told(screen) == snapshot(
            ["two (127.0.0.1:PORT) answers now instead of one (127.0.0.1:PORT). The former server is going away."]
        )
        assert servers.sessions("two") == 1


async def test_both_are_gone_and_the_second_comes_back(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        route.servers[0].rtt_ms, route.servers[1].rtt_ms = 1.0, 50.0

        async def kill(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await servers.stop("one")
                await servers.stop("two")
            elif len(screen.provisional) >= 5 and "two" not in servers.running:
                await servers.start("two")

        await watch(engine, screen, PROMPT, SAMPLED, kill)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert screen.most_provisional >= 5
        assert LinkState.BACK in screen.states
        assert len(told(screen)) == 1


async def test_a_cut_of_the_stream_alone_stays_at_the_server_that_has_the_text(
    target: Target, servers: Servers
) -> None:
    await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (_, engine):
        name = ""

        async def lose(event: Event) -> None:
            nonlocal name
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                name = await serving_now(engine, servers)
                await engine.connection.lose()

        await watch(engine, screen, PROMPT, SAMPLED, lose)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert not screen.notices
        assert await serving_now(engine, servers) == name


async def test_a_server_that_makes_no_progress_is_left(target: Target, servers: Servers) -> None:
    one = await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(silence_seconds=0.5), device(target, "none")) as (route, engine):
        route.servers[0].rtt_ms, route.servers[1].rtt_ms = 1.0, 50.0

        async def hang(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await one.host.services.engine.stop()  # it still answers beats

        await watch(engine, screen, PROMPT, SAMPLED, hang)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert told(screen) == snapshot(
            ["two (127.0.0.1:PORT) answers now instead of one (127.0.0.1:PORT). The former server makes no progress."]
        )


async def test_a_better_server_is_taken_between_answers_and_once(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("two")
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        one, two = route.servers
        one.rtt_ms, two.rtt_ms = 50.0, 60.0
        screens = [Screen(), Screen(), Screen()]
        await watch(engine, screens[0], PROMPT, GREEDY)
        two.rtt_ms = 5.0
        await watch(engine, screens[1], [9, 9, 4], GREEDY)
        one.rtt_ms, two.rtt_ms = 5.0, 50.0
        await watch(engine, screens[2], [11], AnswerSettings(max_tokens=8))
        assert [told(screen) for screen in screens] == snapshot(
            [
                [],
                ["two (127.0.0.1:PORT) answers now instead of one (127.0.0.1:PORT). It is nearer, or has less to do."],
                [],
            ]
        )


async def test_a_server_that_measured_too_much_at_its_start_is_chosen_after_some_answers(
    target: Target, servers: Servers
) -> None:
    await servers.start("one", step_ms=5000.0)  # its core was busy
    await servers.start("two", step_ms=1000.0)
    chosen = []
    for _ in range(2):
        async with talking_to(servers.links(), device(target, "none")) as (route, engine):
            for server in route.servers:
                server.rtt_ms = 1.0
            screen = Screen()
            await watch(engine, screen, PROMPT, AnswerSettings(max_tokens=1))
            chosen.append(await serving_now(engine, servers))
        async with channel_to(servers.running["one"]) as channel:
            peer = Peer(channel)
            await peer.open(run_ahead=True)
            await peer.ask(PROMPT, GREEDY)
            while Finish((await peer.verdict()).finish) is Finish.UNFINISHED:
                pass
            await peer.bye()
    assert chosen == ["two", "one"]


async def test_a_server_of_another_model_is_left_out_by_name(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("strange", model="other")
    await servers.start("three")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        assert [steady(line) for line in route.skipped] == snapshot(
            ["strange (127.0.0.1:PORT) is left out: it serves other, not tiny."]
        )

        async def kill(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await servers.stop(await serving_now(engine, servers))

        await watch(engine, screen, PROMPT, SAMPLED, kill)
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert servers.sessions("strange") == 0


async def test_the_first_server_that_answers_decides_on_the_model(target: Target, servers: Servers) -> None:
    await servers.start("gone")
    await servers.stop("gone")
    await servers.start("strange", model="other")
    await servers.start("three")
    async with connect_any(servers.links()) as route:
        assert (await route.describe()).identity.target_id == "other"
        assert isinstance(route, Route)
        assert [steady(line) for line in route.skipped] == snapshot(
            [
                "gone (127.0.0.1:PORT) is left out for now: There is no moa server at gone (127.0.0.1:PORT): the connection was refused.",
                "three (127.0.0.1:PORT) is left out: it serves tiny, not other.",
            ]
        )


async def test_nobody_answers() -> None:
    async with connect_any([Link("127.0.0.1:1", 2.0, 5.0), Link("127.0.0.1:2", 2.0, 5.0, name="two")]) as route:
        with raises(
            UnavailableError,
            snapshot(
                "There is no moa server at 127.0.0.1:PORT: the connection was refused. There is no moa server at two (127.0.0.1:PORT): the connection was refused. Check --server HOST:PORT, and that moa-server runs there."
            ),
        ):
            await route.describe()


async def test_servers_that_do_not_answer_in_time_are_not_said_to_serve_another_model(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await servers.start("one")
    await servers.start("two")

    async def never(*_: object) -> pb.DescribeResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with connect_any(servers.links()) as route:
        assert isinstance(route, Route)
        await route.describe()
        dialer = route.dialer(PrefixHashes())
        dialer.on_lost(UnavailableError("It is gone."), was_useful=True)
        for each in route.servers:
            monkeypatch.setattr(each, "describe", never)
        with raises(
            UnavailableError,
            snapshot("No server has answered in time. Check --server HOST:PORT, and that moa-server runs there."),
        ):
            await dialer.dial(lambda _: pb.Open(), 0.05, Traffic())


async def test_two_conversations_share_what_is_known(target: Target, servers: Servers) -> None:
    """Each changes by itself, when its own stream is lost."""
    await servers.start("one")
    await servers.start("two")
    async with AsyncExitStack() as stack:
        route, first = await stack.enter_async_context(talking_to(servers.links(), slow_device(target)))
        route.servers[0].rtt_ms, route.servers[1].rtt_ms = 1.0, 50.0
        second = ClientEngine(route, slow_device(target), VOCAB, Codec.INT4, WAITING)
        stack.push_async_callback(second.close)
        screens = {first: Screen(), second: Screen()}
        is_killed = False

        async def kill(event: Event) -> None:
            nonlocal is_killed
            if not is_killed and all(len(screen.committed) > 5 for screen in screens.values()):
                is_killed = True
                await servers.stop("one")

        async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
            for engine, screen in screens.items():
                group.create_task(watch(engine, screen, PROMPT, SAMPLED, kill))
        assert is_killed
        assert [screen.committed for screen in screens.values()] == 2 * [plain_text(target, PROMPT, SAMPLED)[0]]
        await until(lambda: servers.sessions("two") == 2)


async def test_an_open_names_no_session_of_another_server(
    target: Target, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds a resume token can read the conversation."""
    await servers.start("one")
    await servers.start("two")
    opens: list[tuple[str, bytes]] = []
    open_as_it_is = Link.open

    async def note(link: Link, message: pb.Open, *rest: object) -> object:
        opens.append((link.address, message.resume_token))
        return await open_as_it_is(link, message, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Link, "open", note)
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (_, engine):

        async def kill(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await servers.stop(await serving_now(engine, servers))

        await watch(engine, screen, PROMPT, GREEDY, kill)
        assert len({address for address, _ in opens}) == 2
        assert all(not token for _, token in opens)
