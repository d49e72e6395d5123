"""A client's engine and its reader, over links and to servers that fail in real time: one, or a fleet of the tiny target."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from moa_client.conversation.events import Committed, Event, Notice, ServerChanged
from moa_client.device.loading import Device
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import PLAIN, Security
from moa_client.link.server import Server
from moa_server.app import RunningServer, start
from moa_server.service.host import Host
from moa_server.verifier import Target
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree
from moa_testing import Screen as SeenScreen

from tests.net.client_device import device, stepper
from tests.net.server_peer import PROMPT, VOCAB, make_host
from tests.support.messages import steady

SETTINGS = AnswerSettings(Sampling(0.7, seed=4), max_tokens=80, ignore_end_of_text=True)
GREEDY = AnswerSettings(max_tokens=80, ignore_end_of_text=True)
# The servers wait for drafts: else the first would have the whole answer ready before it is lost. No answer ends without one.
WAITING = DraftingSettings(rounds=4, standalone=StandaloneRule(end_ms=600_000.0))


class Screen(SeenScreen):
    """What a reader sees; `cuts`: that the test has made: the link of a busy machine may be lost by itself, too."""

    cuts = 0

    @property
    def notices(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]

    @property
    def told(self) -> list[str]:
        """What was said of servers."""
        return [steady(each.message) for each in self.of(ServerChanged)]


class SlowDrafter(MoaDrafter):
    """Writes alone at the pace of a real one, so that a test has time to heal the link."""

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        time.sleep(0.005)
        return super().write(draft, sampling)


def slow_device(target: Target, name: str = "chain") -> Device:
    held = device(target, name)
    assert held.drafting is not None
    make = held.drafting.new_drafter

    def new_drafter() -> MoaDrafter:
        drafter = make()
        assert isinstance(drafter, MoaDrafter)
        drafter.__class__ = SlowDrafter
        return drafter

    return replace(held, drafting=replace(held.drafting, new_drafter=new_drafter))


def server_at(address: str | int, security: Security = PLAIN, name: str = "") -> Server:
    """A server as clients know it, at an address or at a port of this machine; they give it a busy machine's time."""
    address = f"127.0.0.1:{address}" if isinstance(address, int) else address
    return Server(address, 60.0, 60.0, security, name)


@asynccontextmanager
async def talking_to(
    links: Sequence[Server], held: Device, settings: DraftingSettings | None = WAITING, codec: Codec = Codec.INT4
) -> AsyncIterator[tuple[Fleet, ClientEngine]]:
    """A client's engine and its way to servers, which have described themselves."""
    async with AsyncExitStack() as stack:
        route = await stack.enter_async_context(connect(links))
        await route.describe()
        engine = ClientEngine(route, held, VOCAB, codec, settings)
        stack.push_async_callback(engine.close)
        yield route, engine


@asynccontextmanager
async def talking(address: str, held: Device, settings: DraftingSettings | None = None) -> AsyncIterator[ClientEngine]:
    """A client's engine at one server."""
    async with talking_to([server_at(address)], held, settings) as (_, engine):
        yield engine


async def watch(
    engine: ClientEngine,
    screen: Screen,
    turn: Sequence[int] = PROMPT,
    settings: AnswerSettings = SETTINGS,
    on_event: Callable[[Event], Awaitable[None]] | None = None,
) -> None:
    """Reads an answer until the server has decided all of it: a busy machine's link may be lost at its end."""
    async for event in engine.ask(turn, settings):
        screen.take(event)
        if on_event is not None:
            await on_event(event)
    async for event in engine.attend(lambda: not engine.answers.unsettled):
        screen.take(event)


def once(screen: Screen, happen: Callable[[], Awaitable[object]]) -> Callable[[Event], Awaitable[None]]:
    """Has something happen when some words of an answer are there."""

    async def on_event(event: Event) -> None:
        if isinstance(event, Committed) and len(screen.committed) > 5 and not screen.cuts:
            screen.cuts += 1
            await happen()

    return on_event


class Servers:
    """Servers of the tiny target, by name; all are stopped at the end."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.running: dict[str, RunningServer] = {}
        self._ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.running):
            await self.stop(name)

    def make(self, **settings: Any) -> Host:
        return make_host(self.target, stepper=stepper(self.target, 0), **settings)

    async def start(self, name: str, **settings: Any) -> RunningServer:
        host = self.make(**{"port": self._ports.get(name, 0), **settings})
        host.services.served.identity.drafter_fingerprint = b""
        running = self.running[name] = await start(host)
        self._ports[name] = running.port
        return running

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop(0.0)

    def links(self) -> list[Server]:
        """To all, in the order in which they were started."""
        return [server_at(port, name=name) for name, port in self._ports.items()]

    def sessions(self, name: str) -> int:
        return len(self.running[name].host.services.registry)


async def serving_now(engine: ClientEngine, servers: Servers) -> str:
    """The name of the server that answers."""
    port = int(engine.connection.dialer.server.address.rpartition(":")[2])
    return next(name for name, running in servers.running.items() if running.port == port)
