"""A client's engine and its reader, over links and servers that fail in real time."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from moa_client.conversation.events import Committed, Event, Notice
from moa_client.device.loading import Device
from moa_client.drafting.drafters import ClientDrafter, MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.engine.replaced_server import Refit
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree
from moa_testing import Screen as SeenScreen

from tests.net.client_device import device, with_drafter
from tests.net.server_peer import VOCAB

PROMPT = [5, 17, 42, 8, 17, 42]
SETTINGS = AnswerSettings(Sampling(0.7, seed=4), max_tokens=80, ignore_end_of_text=True)


class Screen(SeenScreen):
    """What a reader sees; `cuts`: that the test has made: the link of a busy machine may be lost by itself, too."""

    cuts = 0

    @property
    def notices(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]


class SlowDrafter(MoaDrafter):
    """Writes alone at the pace of a real one, so that a test has time to heal the link."""

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        time.sleep(0.005)
        return super().write(draft, sampling)


def slow_device(target: Target, name: str = "chain") -> Device:
    return with_drafter(device(target, name), slowed)


def slowed(drafter: ClientDrafter) -> ClientDrafter:
    assert isinstance(drafter, MoaDrafter)
    drafter.__class__ = SlowDrafter
    return drafter


@asynccontextmanager
async def talking(
    target: Target,
    address: str,
    settings: DraftingSettings | None = None,
    *,
    name: str = "chain",
    held: Device | None = None,
    refit: Refit | None = None,
) -> AsyncIterator[ClientEngine]:
    """A client's engine. `name`: of a slow device's drafter; `held`: another device instead."""
    held = held or slow_device(target, name)
    async with connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, held, VOCAB, Codec.INT4, settings, refit=refit)
        try:
            yield engine
        finally:
            await engine.close()


async def watch(
    engine: ClientEngine,
    screen: Screen,
    turn: Sequence[int] = PROMPT,
    settings: AnswerSettings = SETTINGS,
    on_event: Callable[[Event], Awaitable[None]] | None = None,
) -> None:
    async for event in engine.ask(turn, settings):
        screen.take(event)
        if on_event is not None:
            await on_event(event)


def once(screen: Screen, happen: Callable[[], Awaitable[object]]) -> Callable[[Event], Awaitable[None]]:
    """Has something happen when some words of an answer are there."""

    async def on_event(event: Event) -> None:
        if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
            screen.cuts += 1
            await happen()

    return on_event


async def settle(engine: ClientEngine, screen: Screen) -> None:
    """Has the server decide what was written without it: on a busy machine the link may be lost at an answer's end."""
    async for event in engine.attend(lambda: not engine.answers.unsettled):
        screen.take(event)
