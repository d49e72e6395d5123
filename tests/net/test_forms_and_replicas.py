"""Answers of a form at several servers: one that lacks the library is passed over, and without others it says so."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import Committed, Event
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import NoFormsError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, slow_device, watch
from tests.net.fleet_servers import GREEDY, Servers, address, serving_now, told
from tests.net.server_peer import END_OF_TEXT
from tests.net.test_several_servers import talking_to
from tests.support.toy_forms import ToyForms, characters_of

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


async def test_a_question_goes_to_a_server_that_can_hold_its_form_and_the_next_may_stay(
    target: Target, servers: Servers
) -> None:
    text = await undisturbed(target, servers)
    await servers.start("near")
    links = servers.links()[::-1]
    async with talking_to(links, device(target, "none")) as (route, engine):
        near_first(route.servers)
        plain, formed, after = Screen(), Screen(), Screen()
        await watch(engine, plain, [9, 9, 4], GREEDY)
        assert await serving_now(engine, servers) == "near"
        engine.rewind(0)
        await watch(engine, formed, PROMPT, SETTINGS)
        assert formed.committed == text
        assert told(formed) == snapshot(
            [
                "quiet (127.0.0.1:PORT) answers now instead of near (127.0.0.1:PORT). The former server cannot hold answers to a form."
            ]
        )
        await watch(engine, after, [9, 9, 4], GREEDY)
        assert await serving_now(engine, servers) == "quiet"


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
