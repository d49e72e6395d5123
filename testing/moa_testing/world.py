"""A world of real clients and servers in virtual time: what happens in it is one line each.

State: the links, with the servers at their far ends, and the chats; per chat what its reader has seen of an answer.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import isawaitable
from random import Random
from typing import Any, TypeVar
from zlib import crc32

import structlog
from moa.v1 import moa_pb2 as pb
from moa_client.conversation import events
from moa_client.conversation.events import Event, LinkState
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.connection import Backoff
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_server.service.host import Host
from moa_server.settings import ServerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from netsim.core.conditions import Conditions, DelaySpec

from moa_testing.link import Link, LinkSecurity
from moa_testing.models import (
    IDENTITY,
    SERVED,
    Drafter,
    ModelThread,
    SimulatedExecutor,
    SimulatedStepper,
    Target,
    device,
)

NEAR = Conditions(delay=DelaySpec(10.0))  # each way
PATIENT = DraftingSettings(standalone=StandaloneRule(end_ms=60_000.0))  # no answer ends without a server
LONG = AnswerSettings(max_tokens=80, ignore_end_of_text=True)
SETTINGS = ServerSettings(
    port=0, drafter="none", draft_nodes=6, prefill_chunk=5, run_ahead_tokens=20, kv_bytes=1 << 30,
    allow_ignore_end_of_text=True, peer_requests_per_minute=0,
)  # fmt: skip
PATIENCE_SECONDS = 300.0  # of virtual time for an answer, all trouble included
MOST_SECONDS = 50_000.0  # of a story
LEAST_SECONDS = 1e-6  # a turn of the loop takes so long, so that who spins until a moment meets it
Happening = Callable[[], Awaitable[object] | object]
Kind = TypeVar("Kind")


class _NoWaiting(selectors.SelectSelector):
    seconds = 1000.0  # 0 is long ago

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left that could happen: somebody waits for ever"
        self.seconds += max(LEAST_SECONDS, timeout)
        assert self.seconds < MOST_SECONDS, "the story does not end"
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in which waiting takes no time: its clock jumps to what is due next."""

    def __init__(self) -> None:
        self._clock = _NoWaiting()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.seconds

    call_soon_threadsafe = asyncio.SelectorEventLoop.call_soon  # there are no other threads


@contextmanager
def virtual_clocks(world: World) -> Iterator[None]:
    """In this block what runs on a virtual loop reads its clock; what measures, the seconds of models too."""
    clocks = time.monotonic, time.perf_counter

    def read(clock: Callable[[], float], worked_seconds: float) -> float:
        loop = asyncio._get_running_loop()
        return loop.time() + worked_seconds if isinstance(loop, VirtualLoop) else clock()

    time.monotonic, time.perf_counter = lambda: read(clocks[0], 0.0), lambda: read(clocks[1], world.worked_seconds)
    try:
        yield
    finally:
        time.monotonic, time.perf_counter = clocks


class World:
    """Real clients and servers, and what is between them.

    Args:
        seed: decides all that happens.
        link: what links are like, each way.
        right, trees: how often a drafter is right, and whether it guesses several tokens for a place.
        checkpoint_tokens: as of a target, of all servers.
    """

    def __init__(
        self,
        seed: int,
        *,
        link: Conditions = NEAR,
        right: float = 0.8,
        trees: bool = False,
        script: Sequence[int] = (),
        checkpoint_tokens: int = 0,
    ) -> None:
        self.chance = Random(seed)
        self.right, self.trees = right, trees
        self.target, self._checkpoint_tokens = Target(script), checkpoint_tokens
        self.worked_seconds = 0.0  # of models, while the clock stood still
        self._conditions = link
        self._links: dict[str, Link] = {}  # by the server's address
        self._chats: list[Chat] = []

    def link(self, name: str = "one") -> Link:
        """To the server of a name, which runs or not."""
        if (address := self.address(name)) not in self._links:
            self._links[address] = Link(self._conditions, self.chance.getrandbits(32))
        return self._links[address]

    def address(self, name: str = "one") -> str:
        return f"10.0.0.1:{1 + crc32(name.encode()) % 60_000}"

    def start(
        self, name: str = "one", settings: ServerSettings = SETTINGS, identity: pb.Identity = IDENTITY, **changes: Any
    ) -> Host:
        """Starts a server that holds nothing yet. `changes`: to its settings, and its `drafters`."""
        served = replace(SERVED, identity=identity, drafters=tuple(changes.pop("drafters", ())))
        stepper = SimulatedStepper(self.target, self._work, self._checkpoint_tokens)
        thread, clock = ModelThread(self._step_seconds), asyncio.get_running_loop().time
        host = Host.assemble(served, stepper, replace(settings, **changes), clock=clock, thread=thread)
        host.services.engine.start()
        self.link(name).serve(host)
        return host

    def restart(self, name: str = "one") -> None:
        """The server dies, and another one takes its address, which holds nothing."""
        host = self.link(name).host
        self.link(name).stop()
        self.start(name, host.services.settings if host is not None else SETTINGS)

    def host(self, name: str = "one") -> Host:
        """The server of a name, which runs."""
        host = self.link(name).host
        assert host is not None, f"{name} does not run"
        return host

    def server(self, name: str = "one", silence_seconds: float = 20.0) -> Server:
        """A server as clients know it, whether or not it runs."""
        self.link(name)
        return Server(self.address(name), 5.0, silence_seconds, LinkSecurity(insecure=True, links=self._links), name)

    def drafter(self, kind: type[Drafter] = Drafter) -> Drafter:
        return kind(self.target, self.chance, self.right, trees=self.trees)

    def chat(
        self,
        *servers: Server,
        fleet: Fleet | None = None,
        held: Device | None = None,
        drafts: bool = True,
        settings: DraftingSettings = PATIENT,
        **options: Any,
    ) -> Chat:
        """A conversation.

        Args:
            servers: none: `one`.
            held: None: a device with a drafter of the world, or with none (`drafts`).
            options: of `ClientEngine`.
        """
        held = held or device(self.drafter() if drafts else None)
        fleet = fleet or Fleet(servers or [self.server()])
        executor = SimulatedExecutor(lambda: self.chance.uniform(0.0002, 0.004))
        engine = ClientEngine(fleet, held, SERVED.vocab_size, Codec.INT4, settings, executor=executor, **options)
        engine.connection._backoff = Backoff(self.chance)
        self._chats.append(Chat(self, engine))
        return self._chats[-1]

    async def close(self) -> None:
        for chat in self._chats:
            await chat.engine.connection.drop()
        for link in self._links.values():
            link.stop()

    def _step_seconds(self) -> float:
        return self.chance.uniform(0.008, 0.03)

    def _work(self) -> None:
        self.worked_seconds += self._step_seconds()


class Screen:
    """What a reader sees of one answer, put together from its events; what cannot be is an error."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.committed: list[int] = []
        self.provisional: list[int] = []
        self.most_provisional = 0
        self.end: events.Ended | events.Refused | None = None
        self.is_stopped = False

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def states(self) -> list[LinkState]:
        return [event.state for event in self.of(events.LinkChanged)]

    @property
    def text(self) -> list[int]:
        """What the server has decided, in the answer and after it."""
        return [*self.committed, *(token for event in self.of(events.Settled) for token in event.tokens)]

    def take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, events.Committed):
            assert list(event.tokens[: event.confirmed]) == self.provisional[: event.confirmed]
            del self.provisional[: event.confirmed]
            assert event.confirmed == len(event.tokens) or not self.provisional
            self.committed += event.tokens
        elif isinstance(event, events.Provisional):
            self.provisional += event.tokens
            self.most_provisional = max(self.most_provisional, len(self.provisional))
        elif isinstance(event, events.Corrected):
            assert event.dropped == len(self.provisional) > 0
            self.provisional.clear()
        elif isinstance(event, events.Ended | events.Refused):
            self.end = event


class Chat:
    """One conversation, whose reader expects the target's own text."""

    def __init__(self, world: World, engine: ClientEngine) -> None:
        self.world = world
        self.engine = engine
        self.screen = Screen()
        self._script: list[tuple[int, int, LinkState | None, Happening]] = []

    def then(self, do: Happening, *, committed: int = 0, written: int = 0, state: LinkState | None = None) -> Chat:
        """Has something happen in the next answer, after what was named before.

        `committed`, `written`: when so many tokens of it are decided, and so many provisional ones there. `state`: when
        the link has this state.
        """
        self._script.append((committed, written, state, do))
        return self

    async def ask(
        self, turn: Sequence[int] | None = (3, 1, 2), settings: AnswerSettings = LONG, *, settles: bool = True
    ) -> Screen:
        """Asks, reads to the end, and compares the text with the target's own, as far as the reader let it go.

        `turn`: the question; None: continue the newest answer. `settles`: waits until a server has decided what was
        written without one.
        """
        self.screen, conversation = screen, _ = Screen(), self.engine.conversation
        before = len(conversation.tokens) + len(turn or ())
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.engine.ask(turn, settings):
                await self._take(event)
            if settles:
                await self.attend(lambda: not self.engine.answers.unsettled)
                expected = self.world.target.answer(conversation.tokens[:before], settings)
                length = len(screen.text) if screen.is_stopped else len(expected)
                assert conversation.tokens[before:] == screen.text == expected[:length]
                assert not self._script, "not all that the test has planned has happened"
        return screen

    async def attend(self, is_over: Callable[[], bool]) -> None:
        """Takes in what happens between questions, until that is so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in self.engine.attend(is_over):
                await self._take(event)

    def stop(self) -> None:
        """The reader has read enough."""
        self.screen.is_stopped = True
        self.engine.stop()

    async def _take(self, event: Event) -> None:
        self.screen.take(event)
        while self._script:
            committed, written, state, do = self._script[0]
            is_there = len(self.screen.committed) >= committed and len(self.screen.provisional) >= written
            if not is_there or state not in (None, *self.screen.states[-1:]):
                return
            self._script.pop(0)
            if isawaitable(happened := do()):
                await happened


def simulate(story: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0, **options: Any) -> None:
    """Runs a story to its end in a world of its own, whose server `one` is up. `options`: of the world."""
    world, loop, failures = World(seed, **options), VirtualLoop(), list[Any]()

    async def whole() -> None:
        world.start()
        try:
            await story(world)
        finally:
            await world.close()

    loop.set_exception_handler(lambda _, context: failures.append(context))
    with virtual_clocks(world), structlog.testing.capture_logs() as logs:
        try:
            loop.run_until_complete(whole())
        finally:
            for task in (left := asyncio.all_tasks(loop)):  # of calls that the world's end has cut
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.close()
    failures += [each for each in logs if each["log_level"] == "error"]
    assert not failures, failures
