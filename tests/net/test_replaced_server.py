"""A server that comes back at the same address with another drafter, or with another model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import (
    Committed,
    DrafterChanged,
    Ended,
    Event,
    LinkState,
    Provisional,
    ServerChanged,
)
from moa_client.device.drafter_catalog import DrafterChoice
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_server.app import start
from moa_server.running.running_server import RunningServer
from moa_server.service.host import Host
from moa_server.verifier import Target
from moa_shared.errors import DiskFullError
from moa_shared.protocol.finish_rule import Finish

from tests.net.client_device import DRAFTERS_OF_BOTH, device_of_both, stepper_of_both
from tests.net.client_talk import PROMPT, SETTINGS, Screen, talking, watch
from tests.net.server_peer import make_host, plain_text
from tests.support.messages import steady

FIRST, SECOND = DRAFTERS_OF_BOTH
PATIENT = DraftingSettings(standalone=StandaloneRule(end_ms=60_000.0))
OTHER_DRAFTER = snapshot(
    "The server has another drafter now: it answers without this device's drafts until this device has that one."
)
NO_DRAFTER = snapshot("The server has no drafter for this device any more: it answers without this device's drafts.")
OTHER_MODEL = snapshot(
    "127.0.0.1:PORT serves other now: this conversation with tiny is kept, and continues when tiny is served there again; to talk to the other model, start another chat."
)


class Place:
    """An address at which one server follows another."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._running: RunningServer | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, *drafters: pb.Drafter, model: str = "tiny") -> None:
        """Replaces the server."""
        await self.close()
        host = self._host(drafters, model)
        self._running = await start(host)
        self.port = self._running.port

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop(0.0)

    def _host(self, drafters: tuple[pb.Drafter, ...], model: str) -> Host:
        stepper = stepper_of_both(self._target)
        names = [each.fingerprint for each in drafters]
        stepper.sources = tuple(source for source in stepper.sources if source.fingerprint in names)
        host = make_host(self._target, stepper=stepper, drafters=drafters, port=self.port)
        if model != "tiny":
            host.services.served.identity.target_id = model
            host.services.served.identity.target_fingerprint = model.encode().ljust(32)
        return host


@pytest.fixture
async def place(target: Target) -> AsyncIterator[Place]:
    place = Place(target)
    await place.serve(FIRST)
    try:
        yield place
    finally:
        await place.close()


def first_device(target: Target) -> Device:
    return device_of_both(target, FIRST.name)


def told(screen: Screen) -> list[str]:
    return [steady(each.message) for each in screen.notices if isinstance(each, ServerChanged)]


async def attend_until(engine: ClientEngine, screen: Screen, holds: Callable[[], bool]) -> None:
    """Takes in what happens between questions."""
    attending = engine.attend()
    async with asyncio.timeout(30.0):
        while not holds():
            screen.take(await anext(attending))
    await attending.aclose()


class Replacing:
    """Ends the server in an answer, and starts another one when the device has written a few tokens alone."""

    def __init__(self, place: Place, screen: Screen, *drafters: pb.Drafter, model: str = "tiny") -> None:
        self._place = place
        self._screen = screen
        self._drafters = drafters
        self._model = model
        self._stage = 0

    async def on_event(self, event: Event) -> None:
        if self._stage == 0 and isinstance(event, Committed) and len(self._screen.committed) > 5:
            self._stage = 1
            await self._place.close()
        elif self._stage == 1 and isinstance(event, Provisional) and len(self._screen.provisional) >= 3:
            self._stage = 2
            await self._place.serve(*self._drafters, model=self._model)


@pytest.mark.parametrize(("drafters", "message"), [((SECOND,), OTHER_DRAFTER), ((), NO_DRAFTER)], ids=["other", "none"])
async def test_an_answer_continues_without_drafts_on_a_server_of_another_drafter(
    target: Target, place: Place, drafters: tuple[pb.Drafter, ...], message: str
) -> None:
    screen = Screen()
    async with talking(target, place.address, PATIENT, held=first_device(target)) as engine:
        await watch(engine, screen, on_event=Replacing(place, screen, *drafters).on_event)
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert told(screen) == [message]
        again = Screen()

        async def lose_and_find(event: Event) -> None:
            if isinstance(event, Committed) and not again.cuts:
                again.cuts += 1
                engine.go_offline()
            elif isinstance(event, Provisional) and len(again.provisional) >= 3:
                engine.go_online()

        await watch(engine, again, [9, 9, 4], SETTINGS, lose_and_find)  # the drafter that is here still writes alone
        assert again.committed == plain_text(target, [*PROMPT, *screen.committed, 9, 9, 4], SETTINGS)[0]
        assert again.most_provisional >= 3
        assert not again.notices


async def test_the_other_drafter_is_fetched_while_the_answer_goes_on_and_drafts_from_the_next_question_on(
    target: Target, place: Place
) -> None:
    screen, after = Screen(), Screen()
    may_arrive = asyncio.Event()

    async def refit(served: pb.DescribeResponse, held: Device, rtt_ms: float) -> Device:
        assert [each.name for each in served.drafters] == [SECOND.name]
        await may_arrive.wait()
        fitted = device_of_both(target, SECOND.name)
        assert fitted.drafting is not None
        return replace(fitted, drafting=replace(fitted.drafting, choice=DrafterChoice(SECOND.name, "why")))

    async with talking(target, place.address, PATIENT, held=first_device(target), refit=refit) as engine:
        await watch(engine, screen, on_event=Replacing(place, screen, SECOND).on_event)
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        assert told(screen) == [OTHER_DRAFTER]
        may_arrive.set()
        await attend_until(engine, screen, lambda: DrafterChanged(SECOND.name, "why") in screen.notices)
        await watch(engine, after, [9, 9, 4])
        assert after.committed == plain_text(target, [*PROMPT, *screen.committed, 9, 9, 4], SETTINGS)[0]
        assert engine.device.identity.drafter_fingerprint == SECOND.fingerprint
        assert not after.notices
        await place.serve(FIRST, SECOND)  # it is refused no more
        await attend_until(engine, after, lambda: LinkState.GOOD in after.states[-1:])
        assert not after.notices


async def test_a_drafter_that_cannot_be_used_is_named_once_and_not_fetched_again(target: Target, place: Place) -> None:
    screen, calls = Screen(), 0

    async def refit(served: pb.DescribeResponse, held: Device, rtt_ms: float) -> Device | None:
        nonlocal calls
        calls += 1
        raise DiskFullError("The disk is full.", hint="Free some space.")

    async with talking(target, place.address, PATIENT, held=first_device(target), refit=refit) as engine:
        await watch(engine, screen)
        await place.serve(SECOND)
        await attend_until(engine, screen, lambda: len(screen.notices) == 2)
        assert told(screen) == [
            OTHER_DRAFTER,
            snapshot(
                "The server's drafter cannot be used here, so that this device does not draft: The disk is full. Free some space."
            ),
        ]
        await place.serve(SECOND)
        await attend_until(engine, screen, lambda: screen.states[-2:] == [LinkState.OFFLINE, LinkState.GOOD])
        after = Screen()
        await watch(engine, after, [9, 9, 4])
        assert (calls, len(screen.notices), after.notices) == (1, 2, [])
