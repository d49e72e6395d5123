"""Several servers of one model: an answer goes on to the letter when its server is lost, and no other model slips in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from moa_client.conversation.events import Committed, Ended, Event
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


async def test_an_answer_goes_on_at_the_other_server(target: Target, servers: Servers) -> None:
    await servers.start("one")
    await servers.start("two")
    screen = Screen()
    async with talking_to(servers.links(), slow_device(target)) as (route, engine):
        await watch(engine, screen, PROMPT, SAMPLED, once(screen, lambda: stop_serving(engine, servers)))
        assert engine.status.server == route.address == engine.connection.dialer.address
        assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert len(told(screen)) == 1
        left = await serving_now(engine, servers)
        assert told(screen)[0].startswith(f"{left} (127.0.0.1:PORT) answers now instead of ")
        after = Screen()
        await watch(engine, after, [9, 9, 4], SAMPLED)  # it stays where it is
        assert after.committed == plain_text(target, [*PROMPT, *screen.committed, 9, 9, 4], SAMPLED)[0]
        assert not after.notices


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
