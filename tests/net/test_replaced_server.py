"""A server that comes back at the same address with another drafter: answers go on, and the device gets that drafter."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import (
    DrafterChanged,
    Ended,
    Event,
    LinkState,
    ServerChanged,
)
from moa_client.device.drafter_catalog import DrafterChoice
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_server.app import RunningServer, start
from moa_server.verifier import Target
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


class Place:
    """An address at which one server follows another."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._running: RunningServer | None = None
        self._port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def serve(self, *drafters: pb.Drafter) -> None:
        """Replaces the server."""
        await self.close()
        stepper, names = stepper_of_both(self._target), [each.fingerprint for each in drafters]
        stepper.sources = tuple(source for source in stepper.sources if source.fingerprint in names)
        self._running = await start(make_host(self._target, stepper=stepper, drafters=drafters, port=self._port))
        self._port = self._running.port

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop(0.0)


@pytest.fixture
async def place(target: Target) -> AsyncIterator[Place]:
    place = Place(target)
    await place.serve(FIRST)
    try:
        yield place
    finally:
        await place.close()


def told(screen: Screen) -> list[str]:
    return [steady(each.message) for each in screen.notices if isinstance(each, ServerChanged)]


async def attend_until(engine: ClientEngine, screen: Screen, holds: Callable[[], bool]) -> None:
    """Takes in what happens between questions."""
    attending = engine.attend()
    async with asyncio.timeout(30.0):
        while not holds():
            screen.take(await anext(attending))
    await attending.aclose()


def replacing(place: Place, screen: Screen, *drafters: pb.Drafter) -> Callable[[Event], Awaitable[None]]:
    """Ends the server in an answer, and starts another one when the device has written a few tokens."""

    async def on_event(_: Event) -> None:
        if not screen.cuts and len(screen.committed) > 5:
            screen.cuts = 1
            await place.close()
        elif screen.cuts == 1 and len(screen.provisional) >= 3:
            screen.cuts = 2
            await place.serve(*drafters)

    return on_event


@pytest.mark.parametrize(("drafters", "message"), [((SECOND,), OTHER_DRAFTER), ((), NO_DRAFTER)], ids=["other", "none"])
async def test_an_answer_continues_without_drafts_on_a_server_of_another_drafter(
    target: Target, place: Place, drafters: tuple[pb.Drafter, ...], message: str
) -> None:
    screen = Screen()
    async with talking(target, place.address, PATIENT, held=device_of_both(target, FIRST.name)) as engine:
        await watch(engine, screen, on_event=replacing(place, screen, *drafters))
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert told(screen) == [message]
        again = Screen()
        await watch(engine, again, [9, 9, 4])
        assert again.committed == plain_text(target, [*PROMPT, *screen.committed, 9, 9, 4], SETTINGS)[0]
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

    async with talking(target, place.address, PATIENT, held=device_of_both(target, FIRST.name), refit=refit) as engine:
        await watch(engine, screen, on_event=replacing(place, screen, SECOND))
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
