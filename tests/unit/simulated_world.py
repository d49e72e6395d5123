"""The real client and the real server on one event loop whose time is virtual: thousands of conversations a minute.

Everything between `ClientEngine` and `ConverseStream` that is not theirs is simulated: the network (delays, stalls,
streams that break, servers that restart), both inference threads, the target, the drafter. A seed decides all that
happens, so a schedule that fails can be run again. When nothing is left that could happen, the loop says so: nobody
waits for ever.
"""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from types import SimpleNamespace
from typing import Any, TypeVarTuple, cast

import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, Drafting
from moa_client.drafting import drafter_thread
from moa_client.engine import engine as client_engine
from moa_client.engine import session_exchange
from moa_client.link import connection
from moa_client.link.stream import StreamTraffic
from moa_server.access.caller import Caller
from moa_server.engine import engine, inference_thread
from moa_server.engine.stepper import Stepper, Work
from moa_server.service.host import Host
from moa_server.service.services import Served
from moa_server.service.stream import converse as stream
from moa_server.service.stream.converse import ConverseStream
from moa_server.session.verification import StepPlan, Verification
from moa_server.settings import ServerSettings
from moa_shared.drafting import Growth
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.programs import machine
from moa_shared.protocol import finish_rule
from moa_shared.protocol.finish_rule import AnswerSettings, Finish, FinishRule
from moa_shared.sampling.coupling import select
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

Arguments = TypeVarTuple("Arguments")

VOCAB = 11
END_OF_TEXT = frozenset({VOCAB - 1})
CONTEXT = 400
IDENTITY = pb.Identity(target_id="toy", target_fingerprint=b"t", tokenizer_hash=b"k", execution=b"e")
SETTINGS = ServerSettings(
    port=0,
    drafter="none",
    draft_nodes=6,
    prefill_chunk=5,
    run_ahead_tokens=20,
    kv_bytes=1 << 30,
    allow_ignore_end_of_text=True,
)
FEW_MS = 1e-3
FIRST_LOOP = 10  # seeds from here on have texts that soon repeat themselves
_LOGITS = np.random.default_rng(3).standard_normal((997, VOCAB), np.float32)
LEAST_SECONDS = 1e-6  # a turn of the loop takes so long, so that who spins until a moment meets it


def decode(tokens: Sequence[int], **_: object) -> str:
    return "".join(chr(97 + token) for token in tokens)


def target_token(tokens: Sequence[int], sampling: Sampling) -> int:
    """The toy target: what follows depends on the text before it and on how tokens are chosen."""
    if sampling.adjusts:
        return select(logits_after(tokens)[None], [len(tokens)], sampling, TextBefore(tokens, [()]))[0]
    value = 17 * sampling.seed + int(10 * sampling.temperature)
    if sampling.seed >= FIRST_LOOP:  # soon repeats itself
        return (value + 3 * tokens[-1] ** 2 + 1) % (VOCAB - 1)
    for token in tokens[-8:]:
        value = (value * 31 + token + 1) % 10_007
    return (value + len(tokens)) % VOCAB


def logits_after(tokens: Sequence[int], vocab_size: int = VOCAB) -> npt.NDArray[np.float32]:
    """Logits of the toy target for the token after a text; so flat that penalties often decide."""
    value = 7
    for token in tokens[-3:]:
        value = (value * 31 + token + 1) % len(_LOGITS)
    return _LOGITS[value, :vocab_size]


def plain_answer(tokens: Sequence[int], settings: AnswerSettings) -> list[int]:
    """What the target alone answers."""
    rule = FinishRule(settings, len(tokens), CONTEXT, END_OF_TEXT, decode)
    text, finish = list(tokens), Finish.UNFINISHED
    sampling = settings.sampling.within(len(tokens))
    while finish is Finish.UNFINISHED:
        new, finish = rule.cut(text[len(tokens) :], [target_token(text, sampling)])
        text += new
    return text[len(tokens) :]


# ---------------------------------------------------------------- time


class _NoWaiting(selectors.SelectSelector):
    def __init__(self, passed: Callable[[float], None]) -> None:
        super().__init__()
        self._passed = passed

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("nothing is left that could happen: somebody waits for ever")
        self._passed(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits: its clock jumps to what is due next."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_NoWaiting(self._pass))

    def _pass(self, seconds: float) -> None:
        self.now += max(LEAST_SECONDS, seconds)

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)


# ---------------------------------------------------------------- threads and models


class SimulatedThread:
    """Stands for both inference threads: a call takes a while, and calls run in order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free = 0.0
        self._closed = False

    def start(self) -> None:
        """Nothing."""

    def run(self, job: Callable[[], None], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._free = max(loop.time(), self._free) + seconds
        loop.call_at(self._free, lambda: None if self._closed else job())

    def submit_job(self, job: Callable[[], None], *, urgent: bool = False) -> None:
        self.run(job, self._world.chance.uniform(8, 30) * FEW_MS)

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()

        def job() -> None:
            if future.cancelled():
                return
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 (as an executor does)
                future.set_exception(error)
            else:
                future.set_result(result)

        self.run(job, self._world.chance.uniform(0.2, 4) * FEW_MS)
        return future

    def close(self) -> None:
        self._closed = True


class EngineThread(SimulatedThread):
    submit = SimulatedThread.submit_job  # type: ignore[assignment]


class ToyDrafter:
    """Right as often as its world says."""

    reads_memory = False
    most_depth = None

    def __init__(self, world: World) -> None:
        self._world = world
        self._tokens: list[int] = []

    def restart(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def remember(self, start: int, rows: Any, *, state: bool) -> None:
        raise AssertionError("this drafter reads no memory")

    def draft(self, sampling: Sampling) -> DraftTree:
        tokens: list[int] = []
        for _ in range(self._world.chance.randint(0, 5)):
            tokens.append(self._guess(tokens, sampling))
        return DraftTree.chain(tokens)

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        chance = self._world.chance
        if len(draft) > 20 or chance.random() < 0.05:
            return Growth()
        tokens: list[int] = []
        parents: list[int] = []
        for index in range(chance.randint(1, 3) if self._world.trees else 1):
            parent = chance.randint(ROOT, len(draft) - 1) if self._world.trees else len(draft) + index - 1
            tokens.append(self._guess([draft.tokens[at] for at in draft.path_to(parent)], sampling))
            parents.append(parent)
        return Growth(tuple(tokens), tuple(parents))

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self._guess(draft.tokens, sampling), self._world.chance.random()

    def _guess(self, draft: Sequence[int], sampling: Sampling) -> int:
        chance = self._world.chance
        if chance.random() < self._world.right:
            return target_token([*self._tokens, *draft], sampling)
        return chance.randrange(VOCAB)


class ToyCache(list[int]):
    """Tokens in place of keys and values."""

    def most_nbytes(self, rows: int) -> int:
        return rows


class ToyStepper:
    """The target, with a cache of tokens in place of keys and values."""

    sources = ()
    target = SimpleNamespace(page_tokens=0)

    def __init__(self, world: World) -> None:
        self._world = world

    def find_source(self, fingerprint: bytes) -> None:
        return None

    def new_tensors(self) -> Any:
        return SimpleNamespace(cache=ToyCache(), planes={}, source=None, nbytes=0, release=lambda: None)

    def verify_all(self, work: Sequence[Work]) -> list[Verification | None]:
        self._world.worked += self._world.chance.uniform(5, 20) * FEW_MS
        return [self._verify(each.tensors, each.plan) for each in work]

    def _verify(self, tensors: Any, plan: StepPlan) -> Verification | None:
        cache: ToyCache = tensors.cache
        assert len(cache) >= plan.cached, "the cache lacks tokens that the session believes in"
        del cache[plan.cached :]
        cache += plan.feed
        if not plan.chooses:
            return None
        tree, sampling = plan.tree, plan.sampling
        texts = [[*cache, *path] for path in [(), *tree.paths]]
        if sampling.adjusts:
            rows = np.stack([logits_after(text) for text in texts])
            chosen = select(rows, plan.positions, sampling, plan.text_before)
        else:
            chosen = [target_token(text, sampling) for text in texts]
        verification = plan.verify(chosen)
        cache += [tree.tokens[node] for node in verification.kept]
        return verification


# ---------------------------------------------------------------- network


class Direction:
    """One half of a stream: in order, delayed, and held back while the world stalls it."""

    def __init__(self, world: World, side: str, deliver: Callable[[Any], None]) -> None:
        self._world = world
        self._side = side
        self._deliver = deliver
        self._items: deque[tuple[float, Any]] = deque()
        self._last = 0.0

    def put(self, item: Any) -> None:
        loop = asyncio.get_running_loop()
        self._last = max(self._last + 1e-6, loop.time() + self._world.delay())
        self._items.append((self._last, item))
        loop.call_at(self._last, self.pump)

    def pump(self) -> None:
        now = asyncio.get_running_loop().time() + 1e-9
        while self._items and self._items[0][0] <= now and self._side not in self._world.stalled:
            self._deliver(self._items.popleft()[1])

    def lose(self) -> None:
        """What is on its way is lost."""
        self._items.clear()


class _End:
    """The client's half of a stream has ended without Bye."""


class Wire:
    """One Converse stream: the client's end is this object, the server's a task."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inbox: asyncio.Queue[pb.ServerFrame | MoaError] = asyncio.Queue()
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.up = Direction(world, "up", self._at_server)
        self.down = Direction(world, "down", self._at_client)
        self._broken = False
        self._server = asyncio.create_task(self._serve())
        world.wires.append(self)

    # ------------------------------------------------------------ the client's end

    async def send(self, frame: pb.ClientFrame) -> None:
        if self._broken:
            raise UnavailableError("The stream is broken.")
        self.up.put(frame.SerializeToString())

    async def receive(self) -> pb.ServerFrame:
        item = await self._inbox.get()
        if isinstance(item, MoaError):
            raise item
        return item

    async def say_goodbye(self) -> None:
        await self.send(pb.ClientFrame(bye=pb.Bye()))

    def cancel(self) -> None:
        """The client leaves; the server learns of it when the network says so."""
        self._inbox.put_nowait(UnavailableError("The stream was left."))
        self.up.put(_End())

    # ------------------------------------------------------------ what happens to it

    def reset(self, *, at_once: bool) -> None:
        """Both ends lose it; what was on its way is lost too, or still arrives at the server."""
        if self._broken:
            return
        self._broken = True
        self.down.lose()
        self._inbox.put_nowait(UnavailableError("The stream broke."))
        if at_once:
            self.up.lose()
            self._server.cancel()
        else:
            self.up.put(_End())

    async def end(self) -> None:
        self._server.cancel()
        await asyncio.gather(self._server, return_exceptions=True)

    # ------------------------------------------------------------ the server's end

    def _at_server(self, item: bytes | _End) -> None:
        if isinstance(item, _End):
            self._server.cancel()
        else:
            self._frames.put_nowait(item)

    def _at_client(self, item: pb.ServerFrame | MoaError) -> None:
        if isinstance(item, pb.ServerFrame) and item.verdict.finish and self._world.loses_finish():
            item.verdict.finish = pb.FINISH_UNSPECIFIED
            self._inbox.put_nowait(item)
            self.reset(at_once=True)
            return
        self._inbox.put_nowait(item)

    async def _serve(self) -> None:
        async def frames() -> AsyncIterator[bytes]:
            while True:
                yield await self._frames.get()

        async def write(frame: pb.ServerFrame) -> None:
            copy = pb.ServerFrame()
            copy.CopyFrom(frame)
            self.down.put(copy)

        try:
            await ConverseStream(self._world.host.services, self._world.host.lifecycle, write, Caller()).run(frames())
        except MoaError as error:
            self.down.put(error)
        else:
            self.down.put(UnavailableError("The server ended the conversation."))


class SimulatedServer:
    """A server as the client knows it: opens wires."""

    address = "simulated"
    label = "simulated"
    silence_seconds = 60.0
    channel_number = 0
    named = ()

    def __init__(self, world: World) -> None:
        self._world = world
        self.described_at = math.inf  # so that nobody asks it

    def renew(self, lost: int) -> None:
        """There is no channel here."""

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: StreamTraffic | None = None, session: str = ""
    ) -> tuple[Wire, pb.Opened]:
        if self._world.stalled and self._world.chance.random() < 0.3:
            await asyncio.sleep(self._world.delay())
            raise UnavailableError("There is no network.")
        wire = Wire(self._world)
        try:
            async with asyncio.timeout(seconds or 5.0):
                await wire.send(pb.ClientFrame(open=message))
                frame = await wire.receive()
        except asyncio.CancelledError:
            wire.cancel()
            raise
        except TimeoutError:
            wire.cancel()
            raise UnavailableError("The server did not open the conversation in time.") from None
        return wire, frame.opened


class World:
    """All that one schedule needs.

    Args:
        seed: decides everything that happens.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.right = self.chance.random()
        self.trees = self.chance.random() < 0.5
        self.worked = 0.0  # seconds that the target has computed in no time
        self.stalled: set[str] = set()
        self.wires: list[Wire] = []
        self.finishes_to_lose = 1 if self.chance.random() < 0.1 else 0
        self._far = self.chance.uniform(1, 40) * FEW_MS
        self.complaints: list[str] = []  # of the server about itself

    def start_server(self) -> None:
        """A server that holds nothing yet."""
        served = Served(
            identity=IDENTITY,
            execution=pb.Execution(level="toy", exact=True),
            vocab_size=VOCAB,
            context_tokens=CONTEXT,
            end_of_text=END_OF_TEXT,
            decode=decode,
        )
        loop = asyncio.get_running_loop()
        self.host = Host.assemble(served, cast(Stepper, ToyStepper(self)), SETTINGS, clock=loop.time)
        self.host.services.engine.start()

    def delay(self) -> float:
        """Seconds from one end to the other."""
        return self._far * self.chance.uniform(0.8, 1.5)

    def loses_finish(self) -> bool:
        """Whether a client holds an answer's last tokens and never hears that they are the last."""
        if not self.finishes_to_lose or self.chance.random() < 0.5:
            return False
        self.finishes_to_lose -= 1
        return True

    def device(self, *, drafts: bool) -> Device:
        """What the client holds."""
        drafter = ToyDrafter(self) if drafts else None
        tokenizer = SimpleNamespace(shown=decode)
        return Device(cast(Any, None), cast(Any, tokenizer), IDENTITY, Drafting(drafter), END_OF_TEXT, CONTEXT)

    # ------------------------------------------------------------ trouble

    def stall(self, *sides: str) -> None:
        """Nothing gets through."""
        self.stalled |= set(sides)

    def heal(self) -> None:
        """What was held back arrives."""
        self.stalled.clear()
        for wire in self.wires:
            wire.up.pump()
            wire.down.pump()

    def reset(self) -> None:
        """All streams break."""
        for wire in self.wires:
            wire.reset(at_once=self.chance.random() < 0.5)
        self.wires.clear()

    def restart(self) -> None:
        """The server dies, and another one takes its address, which has lost everything."""
        for wire in self.wires:
            wire.reset(at_once=True)
        self.wires.clear()
        self.start_server()

    async def end(self) -> None:
        for wire in self.wires:
            await wire.end()


class _Log:
    """What the server logs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, *_: object, **__: object) -> None:
        """Is of no interest."""

    def error(self, event: str, *, exc_info: object = None, **_: object) -> None:
        self._world.complaints.append(f"{event}: {exc_info!r}")


def shorten_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the guard against loops end texts of a simulation's length."""
    for name, value in (("LOOP_TOKENS", 24), ("LONGEST_RUN", 8), ("LOOK_EVERY", 4)):
        monkeypatch.setattr(finish_rule, name, value)


def simulate(monkeypatch: pytest.MonkeyPatch, seed: int, run: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Runs one schedule."""
    world = World(seed)

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return loop.time()

        @staticmethod
        def perf_counter() -> float:
            return loop.time() + world.worked

        process_time = perf_counter

    for module in (client_engine, session_exchange, connection, drafter_thread, machine, engine):
        monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(drafter_thread, "DrafterExecutor", lambda: SimulatedThread(world))
    monkeypatch.setattr(engine, "InferenceThread", lambda *_: EngineThread(world))
    for module in (inference_thread, stream):
        monkeypatch.setattr(module, "log", _Log(world))
    shorten_loops(monkeypatch)

    async def whole() -> None:
        world.start_server()
        try:
            await run(world)
        finally:
            await world.end()
        assert not world.complaints

    loop = VirtualLoop()
    try:
        loop.run_until_complete(whole())
    finally:
        left = asyncio.all_tasks(loop)  # of wires that the world's end has cut
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
