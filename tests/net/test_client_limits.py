"""A client whose answers a server interrupts, by its limits or for its own housekeeping: no word is lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import Ended, Event, LinkChanged, LinkState
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_server.access import limits
from moa_server.access.caller import anonymous
from moa_server.service.host import Host
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import Finish

from netsim import open_link
from tests.net.client_device import device, stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, settle, talking, watch
from tests.net.server_peer import make_host, plain_text, serving

CALLER = anonymous("ipv4:127.0.0.1:1")
PATIENT = DraftingSettings(standalone=StandaloneRule(end_ms=60_000.0))  # as a chat is, but for longer than a test takes
PER_MINUTE = 1200  # fewer than this machine writes


def almost_spent(target: Target, monkeypatch: pytest.MonkeyPatch, left: int, per_minute: int = PER_MINUTE) -> Host:
    """A server that lets this address write so many tokens more, and then six at a time."""
    monkeypatch.setattr(limits, "PIECE_SECONDS", 0.3)
    host = make_host(target, stepper=stepper(target, 0), tokens_per_minute=per_minute)
    host.admission.rates.take_tokens(CALLER, per_minute - left)
    return host


@pytest.mark.parametrize("drafts", [True, False], ids=["drafter", "none"])
async def test_an_answer_over_the_limit_waits_and_goes_on(
    target: Target, monkeypatch: pytest.MonkeyPatch, *, drafts: bool
) -> None:
    screen, waits = Screen(), list[LinkChanged]()

    async def note(event: Event) -> None:
        if isinstance(event, LinkChanged) and event.state is LinkState.WAITING:
            waits.append(event)

    async with (
        serving(almost_spent(target, monkeypatch, 20)) as running,
        talking(
            target, f"127.0.0.1:{running.port}", PATIENT, held=None if drafts else device(target, "none")
        ) as engine,
    ):
        await watch(engine, screen, on_event=note)
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert waits
        assert waits[0].reason == snapshot("The server lets this address read and write 1200 tokens a minute.")
        assert all(0.0 < wait.wait_seconds < 5.0 for wait in waits)
        assert engine.availability.state is not LinkState.WAITING


async def test_a_question_over_the_limit_is_answered_when_there_is_room(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    async with (
        serving(almost_spent(target, monkeypatch, -20, 4 * PER_MINUTE)) as running,
        talking(target, f"127.0.0.1:{running.port}", held=device(target, "none")) as engine,
    ):
        await watch(engine, screen)
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        assert screen.states[0] is LinkState.WAITING


async def test_a_link_that_is_cut_at_the_limit_costs_no_word(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    async with (
        serving(almost_spent(target, monkeypatch, 20)) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        talking(target, link.target, PATIENT) as engine,
    ):

        async def cut_and_heal(event: Event) -> None:
            if isinstance(event, LinkChanged) and event.state is LinkState.WAITING and not screen.cuts:
                screen.cuts += 1
                await link.cut()
            elif isinstance(event, LinkChanged) and event.state is LinkState.OFFLINE and screen.cuts:
                await link.heal()

        await watch(engine, screen, on_event=cut_and_heal)
        await settle(engine, screen)
        assert screen.text == plain_text(target, PROMPT, SETTINGS)[0]
        assert screen.cuts == 1
        assert LinkState.OFFLINE in screen.states


async def test_connections_that_grow_old_cost_no_word(target: Target) -> None:
    host = make_host(target, stepper=stepper(target, 0), connection_age_seconds=0.5, connection_age_grace_seconds=0.2)
    async with serving(host) as running, talking(target, f"127.0.0.1:{running.port}") as engine:
        expected, _ = plain_text(target, PROMPT, SETTINGS)
        answers = 0
        while engine.connection.stream_number < 4:
            screen = Screen()
            await watch(engine, screen)
            await settle(engine, screen)
            assert screen.text == expected
            engine.rewind(0)
            answers += 1
        assert answers > 1


async def attend_until_asleep(engine: ClientEngine) -> list[Event]:
    """What happens until the stream is gone and no other one is being opened."""
    connection, events = engine.connection, list[Event]()

    async def wake() -> None:
        while True:
            engine.wake()
            await asyncio.sleep(0.001)

    waking = asyncio.create_task(wake())
    try:
        async with aclosing(engine.attend(lambda: not connection.is_up and not connection.is_trying)) as happening:
            events += [event async for event in happening]
    finally:
        waking.cancel()
    return events


@pytest.mark.parametrize("crosses", [False, True])
async def test_a_stream_that_the_server_ends_as_idle_is_opened_with_the_next_question(
    target: Target, crosses: bool
) -> None:
    """Whether the client has heard of the end, or its question crosses it."""
    now = 1000.0
    host = make_host(target, stepper=stepper(target, 0), clock=lambda: now, idle_seconds=60)
    async with serving(host) as running, talking(target, f"127.0.0.1:{running.port}") as engine:
        first, second = Screen(), Screen()
        await watch(engine, first)
        now += 61.0
        host.lifecycle.end_idle()
        if not crosses:
            events = await attend_until_asleep(engine)
            assert not any(isinstance(event, LinkChanged) and event.state is LinkState.OFFLINE for event in events)
            assert engine.availability.state is not LinkState.OFFLINE
        streams = engine.connection.stream_number
        await watch(engine, second, [9, 9, 4])
        assert engine.connection.stream_number == streams + 1
        whole = [*PROMPT, *first.committed, 9, 9, 4]
        assert second.committed == plain_text(target, whole, SETTINGS)[0]
