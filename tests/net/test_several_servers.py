"""Several servers of one model: an answer goes on to the letter when its server is lost, and no other model slips in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Ended, Event, LinkState
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import NoFormsError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, once, slow_device, watch
from tests.net.fleet_servers import GREEDY, SAMPLED, WAITING, Servers, address, serving_now, told
from tests.net.server_peer import END_OF_TEXT, VOCAB, plain_text
from tests.support.messages import steady
from tests.support.toy_forms import ToyForms, characters_of


@asynccontextmanager
async def talking_to(
    links: Sequence[Server], held: Device, settings: DraftingSettings = WAITING
) -> AsyncIterator[tuple[Fleet, ClientEngine]]:
    async with connect(links) as route:
        await route.describe()
        engine = ClientEngine(route, held, VOCAB, Codec.INT4, settings)
        try:
            yield route, engine
        finally:
            await engine.close()


async def stop_serving(engine: ClientEngine, servers: Servers) -> None:
    """Ends the server that answers."""
    await servers.stop(await serving_now(engine, servers))


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
        await watch(engine, screen, PROMPT, settings, once(screen, lambda: stop_serving(engine, servers)))
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
        near_first(route.servers)
        # It still answers beats.
        await watch(engine, screen, PROMPT, SAMPLED, once(screen, one.host.services.engine.stop))
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert [line.partition(". ")[2] for line in told(screen)] == ["The former server makes no progress."]


async def test_a_better_server_is_taken_between_answers_and_once(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("two")
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        one, two = route.servers
        changes = []
        for one.rtt_ms, two.rtt_ms in ((50.0, 60.0), (50.0, 5.0), (5.0, 50.0)):
            screen = Screen()
            await watch(engine, screen, [9, 9, 4], AnswerSettings(max_tokens=8))
            changes.append([line.partition(". ")[2] for line in told(screen)])
        assert changes == [[], ["It is nearer, or has less to do."], []]


async def test_a_server_of_another_model_is_left_out_by_name(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("strange", model="other")
    await servers.start("three")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        assert [steady(line) for line in route.skipped] == snapshot(
            ["strange (127.0.0.1:PORT) is left out: it serves other, not tiny."]
        )

        await watch(engine, screen, PROMPT, SAMPLED, once(screen, lambda: stop_serving(engine, servers)))
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert servers.sessions("strange") == 0


async def test_the_first_server_that_answers_decides_on_the_model(target: Target, servers: Servers) -> None:
    await servers.start("gone")
    await servers.stop("gone")
    await servers.start("strange", model="other")
    await servers.start("three")
    async with connect(servers.links()) as route:
        assert (await route.describe()).identity.target_id == "other"
        assert [steady(line) for line in route.skipped] == snapshot(
            [
                "gone (127.0.0.1:PORT) is left out for now: There is no moa server at gone (127.0.0.1:PORT): the connection was refused.",
                "three (127.0.0.1:PORT) is left out: it serves tiny, not other.",
            ]
        )


async def test_an_open_names_no_session_of_another_server(
    target: Target, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds a resume token can read the conversation."""
    await servers.start("one")
    await servers.start("two")
    opens: list[tuple[str, bytes]] = []
    open_as_it_is = Server.open

    async def note(link: Server, message: pb.Open, *rest: object) -> object:
        opens.append((link.address, message.resume_token))
        return await open_as_it_is(link, message, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Server, "open", note)
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (_, engine):
        await watch(engine, screen, PROMPT, GREEDY, once(screen, lambda: stop_serving(engine, servers)))
        assert len({address for address, _ in opens}) == 2
        assert all(not token for _, token in opens)


FORM = Constraint(ConstraintKind.REGEX, r"([a-z]{3} = [0-9]{4}; ){4}done")
SETTINGS = AnswerSettings(Sampling(1.0, seed=3, constraint=FORM), max_tokens=90)
FORMS = ToyForms(END_OF_TEXT).as_compiler()


def near_first(links: Sequence[Server]) -> None:
    for rtt_ms, link in zip((1.0, 10.0, 50.0), links, strict=False):
        link.rtt_ms = rtt_ms


async def undisturbed(target: Target, servers: Servers) -> list[int]:
    """The answer of a server that stays."""
    await servers.start("quiet", forms=FORMS)
    screen = Screen()
    async with talking_to([Server(address(servers, "quiet"), 5.0, 20.0)], device(target, "none")) as (_, engine):
        await watch(engine, screen, PROMPT, SETTINGS)
    assert re.fullmatch(FORM.text, characters_of(screen.committed, END_OF_TEXT))
    return screen.committed


@pytest.mark.parametrize("comes_back", [False, True], ids=["gone", "back without the library"])
@pytest.mark.parametrize("drafts", [True, False], ids=["drafting", "without a drafter"])
async def test_a_resume_passes_over_servers_without_the_library(
    target: Target, servers: Servers, drafts: bool, comes_back: bool
) -> None:
    text = await undisturbed(target, servers)
    await servers.stop("quiet")
    await servers.start("one", forms=FORMS)
    await servers.start("two")
    await servers.start("three", forms=FORMS)
    links = [link for link in servers.links() if link.name != "quiet"]
    screen = Screen()
    async with talking_to(links, slow_device(target) if drafts else device(target, "none")) as (route, engine):
        near_first(route.servers)

        async def kill(event: Event) -> None:
            if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
                screen.cuts += 1
                await servers.stop("one")
                if comes_back:
                    await servers.start("one")

        await watch(engine, screen, PROMPT, SETTINGS, kill)
        assert screen.committed == text
        assert await serving_now(engine, servers) == "three"
        assert len(told(screen)) == 1


async def test_a_server_without_the_library_leads_to_those_that_it_names(target: Target, servers: Servers) -> None:
    text = await undisturbed(target, servers)
    await servers.start("home", peers=address(servers, "quiet"))
    screen = Screen()
    async with talking_to([Server(address(servers, "home"), 5.0, 20.0)], device(target, "none")) as (_, engine):
        await watch(engine, screen, PROMPT, SETTINGS)
        assert screen.committed == text
        assert await serving_now(engine, servers) == "quiet"


@pytest.mark.parametrize("count", [1, 2])
async def test_where_none_has_the_library_the_question_is_refused(target: Target, servers: Servers, count: int) -> None:
    for number in range(count):
        await servers.start(str(number))
    async with talking_to(servers.links(), device(target, "none")) as (_, engine):
        for asked in range(2):  # before a stream is open, and after
            with pytest.raises(
                NoFormsError, match=r"cannot hold answers to a form\. Ask for text, or have its operator"
            ):
                await watch(engine, Screen(), PROMPT, SETTINGS)
            if not asked:
                await watch(engine, Screen(), PROMPT, GREEDY)
        screen = Screen()
        await watch(engine, screen, [9, 9, 4], GREEDY)  # the conversation goes on
        assert screen.committed
