"""Sessions that share the pages of a prefix: what is read once is not read again, and nobody notices otherwise."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_kernels import Page
from moa_server.access import authentication
from moa_server.access.caller import Caller
from moa_server.engine.prefixes.sharing import Adoption, PrefixSharing
from moa_server.engine.stepper import SessionTensors, Stepper, Work
from moa_server.memory.row_store import most_nbytes
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target, TargetOutput
from moa_server.verifier.kernel_target import KernelCache
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import (
    CONTEXT,
    PATIENCE,
    VOCAB,
    Peer,
    generate,
    make_host,
    plain_text,
    serving,
    toy_source,
    until,
)
from tests.support.tiny_models import tiny_kernel_target, tiny_model

PAGE, DRAFT_NODES = 64, 64
SHORT = AnswerSettings(max_tokens=6, ignore_end_of_text=True)
TEXT = [random.Random(7).randrange(VOCAB) for _ in range(150)]  # two full pages and more
PLANES = (pb.PLANE_MEMORY, pb.PLANE_REUSED_STATE)


def pages_of(tensors: SessionTensors) -> list[Page]:
    assert isinstance(tensors.cache, KernelCache)
    rows = [page for store in tensors.planes.values() for page in store._pages if page is not None]
    return [*tensors.cache.pages._pages, *rows]


class WatchingStepper(Stepper):
    """Counts the rows that forwards feed, and what all sessions hold at its most."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, [toy_source(target)])
        self.fed = 0
        self.most_nbytes = 0
        self.kept: Any = None  # the pages of the store, by their number
        self._all: list[SessionTensors] = []

    def new_tensors(self) -> SessionTensors:
        tensors = super().new_tensors()
        self._all.append(tensors)
        return tensors

    def held_nbytes(self) -> int:
        pages = {id(page): page for tensors in self._all for page in pages_of(tensors)}
        for kept in tuple(self.kept.values()):
            pages |= {id(page): page for page in (kept.keys_values, *kept.states.values())}
        return sum(page.nbytes for page in pages.values())

    def most_nbytes_of(self, tokens: int) -> int:
        """What a conversation of so many tokens is promised, with all planes."""
        rows, widths = tokens + DRAFT_NODES, self.widths(self.sources[0], reused_state=True)
        return self.target.new_cache().most_nbytes(rows) + sum(most_nbytes(width, rows) for width in widths.values())

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        outputs = super().forward_all(work)
        self.fed += sum(len(each.plan.feed) for each in work)
        self.most_nbytes = max(self.most_nbytes, self.held_nbytes())
        return outputs


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


@pytest.fixture
def stepper(target: Target) -> WatchingStepper:
    return WatchingStepper(target)


@asynccontextmanager
async def server(stepper: WatchingStepper, **settings: Any) -> AsyncIterator[RunningServer]:
    host = make_host(stepper.target, stepper=stepper, **{"prefill_chunk": 32, "draft_nodes": DRAFT_NODES, **settings})
    stepper.kept = host.services._sharing._store._kept
    async with serving(host) as running:
        yield running


@pytest.fixture
async def running(stepper: WatchingStepper) -> AsyncIterator[RunningServer]:
    async with server(stepper) as running:
        yield running


@asynccontextmanager
async def channel_to(running: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own, from a port of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=options) as channel:
        yield channel


@pytest.fixture
async def channel(running: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with channel_to(running) as channel:
        yield channel


class HastyPeer(Peer):
    """Changes its text while memory of what it had is under way."""

    def _take_memory(self, memory: pb.Memory) -> None:
        if memory.start + memory.count <= len(self.tokens):
            self.memory.append(memory)

    def crop(self, length: int) -> None:
        kept, self.tokens, self.hashes = self.tokens[:length], [], type(self.hashes)()
        self.append(kept)


async def answer(peer: Peer, text: Sequence[int] = TEXT, settings: AnswerSettings = SHORT, **fields: Any) -> list[int]:
    """Opens, asks, and reads the answer to its end."""
    if peer.opened is None:
        await peer.open(**{"run_ahead": True, "reused_state": True, **fields})
    base = len(peer.tokens)
    await peer.ask(text, settings)
    seen = len(peer.verdicts)
    while len(peer.verdicts) == seen or not peer.verdicts[-1].finish:
        await peer.verdict()
    return peer.tokens[base + len(text) :]


async def rows_of(peer: Peer, stop: int) -> dict[int, list[bytes]]:
    """The bytes of each row before `stop`, by plane."""
    rows: dict[int, list[bytes]] = {}
    await peer.send(credit=pb.Credit(bytes=1 << 20))  # more than is sent at first
    for plane in PLANES:
        held = await peer.rows(stop, plane)
        rows[plane] = [
            frame.payload[(place - frame.start) * size :][:size]
            for place, frame in sorted(held.items())
            if (size := len(frame.payload) // frame.count)
        ][:stop]
    return rows


async def test_the_second_user_reads_only_what_is_new_and_gets_the_same_bits(
    channel: grpc.aio.Channel, target: Target, stepper: WatchingStepper
) -> None:
    expected, _ = plain_text(target, TEXT, SHORT)
    first, second = Peer(channel), Peer(channel)
    assert await answer(first) == expected
    afresh = await rows_of(first, len(TEXT))
    before = stepper.fed
    assert before >= len(TEXT)
    assert await answer(second) == expected
    assert stepper.fed - before < PAGE
    assert await rows_of(second, len(TEXT)) == afresh


@pytest.mark.parametrize("ends", ["bye", "cut"])
async def test_a_client_that_has_lost_its_token_finds_its_text(
    channel: grpc.aio.Channel, target: Target, stepper: WatchingStepper, running: RunningServer, ends: str
) -> None:
    peer = Peer(channel)
    await answer(peer)
    text = [*peer.tokens, 5, 6]
    if ends == "bye":
        await peer.bye()
        assert len(running.host.services.registry) == 0
    else:
        peer.call.cancel()
        await until(lambda: running.host.services.registry.detached == 1)
    before = stepper.fed
    assert await answer(Peer(channel), text) == plain_text(target, text, SHORT)[0]
    assert stepper.fed - before < PAGE


async def test_a_resumed_conversation_finds_its_pages_too(
    channel: grpc.aio.Channel, target: Target, stepper: WatchingStepper
) -> None:
    """A server that was asked with a whole text in the Open, as a client that has lost its server does."""
    await answer(Peer(channel))
    expected, _ = plain_text(target, TEXT, SHORT)
    before = stepper.fed
    again = Peer(channel)
    again.append(TEXT)
    ask = again.ask_message([], SHORT, len(TEXT))
    again.tokens, again.hashes = [], type(again.hashes)()
    await again.open(tokens=TEXT, run_ahead=True, ask=ask)
    while not again.verdicts or not again.verdicts[-1].finish:
        await again.verdict()
    assert again.tokens[len(TEXT) :] == expected
    assert stepper.fed - before < PAGE


async def test_pages_without_the_states_that_a_client_needs_are_read_again(
    channel: grpc.aio.Channel, target: Target, stepper: WatchingStepper
) -> None:
    expected, _ = plain_text(target, TEXT, SHORT)
    assert (await generate(channel, TEXT, SHORT))[0] == expected  # no client, no states
    before = stepper.fed
    first = Peer(channel)
    assert await answer(first) == expected
    assert stepper.fed - before >= len(TEXT)
    before = stepper.fed
    second = Peer(channel)
    assert await answer(second) == expected
    assert stepper.fed - before < PAGE
    assert await rows_of(second, len(TEXT)) == await rows_of(first, len(TEXT))
    before = stepper.fed
    assert (await generate(channel, TEXT, SHORT))[0] == expected
    assert stepper.fed - before < PAGE


@pytest.mark.parametrize("share", ["off", "client", "all"])
async def test_clients_share_only_what_the_operator_allows(
    stepper: WatchingStepper, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    # With its port: two connections are two clients.
    monkeypatch.setattr(authentication, "caller_without_key", lambda peer, _: Caller(peer, peer))
    async with server(stepper, share_prefixes=share) as running, channel_to(running) as one, channel_to(running) as two:
        first = await answer(Peer(one))
        before = stepper.fed
        assert await answer(Peer(one)) == first
        assert (stepper.fed - before < PAGE) is (share != "off")
        before = stepper.fed
        assert await answer(Peer(two)) == first
        assert (stepper.fed - before < PAGE) is (share == "all")


async def test_a_question_that_finds_its_text_while_the_one_before_waits_for_a_forward(
    channel: grpc.aio.Channel, target: Target, stepper: WatchingStepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the session is given is not read over by the step that it waited for: neither the text nor its rows."""
    expected, _ = plain_text(target, TEXT, SHORT)
    first = Peer(channel)
    await answer(first)
    afresh = await rows_of(first, len(TEXT))
    started, goes_on = threading.Event(), threading.Event()
    forward_all = stepper.forward_all

    def wait(work: Sequence[Work]) -> list[TargetOutput]:
        started.set()
        assert goes_on.wait(PATIENCE)
        return forward_all(work)

    monkeypatch.setattr(stepper, "forward_all", wait)
    other, peer = Peer(channel), HastyPeer(channel)
    for each in (other, peer):
        await each.open(run_ahead=True, reused_state=True)
    await other.ask([1, 2, 3], SHORT)
    await until(started.is_set)
    before = stepper.fed
    await peer.ask([4] * 40, SHORT)
    peer.crop(0)
    await peer.ask(TEXT, SHORT)
    await peer.send(beat=pb.Beat(stamp=1))
    while (frame := await peer.receive()) is None or not frame.HasField("beat"):
        pass  # the server has read both questions
    goes_on.set()
    while not peer.verdicts or not peer.verdicts[-1].finish:
        await peer.verdict()
    assert peer.tokens[len(TEXT) :] == expected
    assert stepper.fed - before < PAGE
    assert await rows_of(peer, len(TEXT)) == afresh


async def test_the_lender_closes_crops_and_asks_again_while_its_pages_are_used(
    channel: grpc.aio.Channel, target: Target
) -> None:
    long = AnswerSettings(Sampling(1.0, seed=3), max_tokens=40, ignore_end_of_text=True)
    expected, _ = plain_text(target, TEXT, long)
    lender, taker = HastyPeer(channel), Peer(channel)
    await answer(lender)
    await taker.open(run_ahead=True)
    await taker.ask(TEXT, long)
    await taker.verdict()
    for start in (100, 20, 70):  # into the second page, into the first, into its own
        lender.crop(start)
        kept, other = list(lender.tokens), [(token + 1) % VOCAB for token in TEXT[start:]]
        settings = AnswerSettings(Sampling(1.0, seed=start), max_tokens=8, ignore_end_of_text=True)
        assert await answer(lender, other, settings) == plain_text(target, [*kept, *other], settings)[0]
        await taker.verdict()
    await lender.bye()
    while not taker.verdicts[-1].finish:
        await taker.verdict()
    assert taker.tokens[len(TEXT) :] == expected


async def test_pages_go_when_their_room_is_needed(target: Target, stepper: WatchingStepper) -> None:
    """Three texts that leave two pages each, in room for six pages; an answer may take four."""
    need = stepper.most_nbytes_of(len(TEXT) + SHORT.max_tokens)
    async with server(stepper, kv_bytes=need + need // 2) as running, channel_to(running) as channel:
        host = running.host
        texts = [[(token + shift) % VOCAB for token in TEXT] for shift in range(3)]
        for text in texts:
            peer = Peer(channel)
            assert await answer(peer, text) == plain_text(target, text, SHORT)[0]
            await peer.bye()
            assert host.services.pool.promised <= host.services.pool.budget
            assert (
                host.services.pool.promised == host.services.prefixes.nbytes == host.services.prefixes.spare_nbytes > 0
            )
        await until(lambda: stepper.held_nbytes() == host.services.prefixes.nbytes)  # jobs of the thread are done
        assert stepper.most_nbytes <= host.services.pool.budget
        before = stepper.fed
        await answer(Peer(channel), texts[2])
        assert stepper.fed - before < PAGE
        before = stepper.fed
        await answer(Peer(channel), texts[0])
        assert stepper.fed - before >= len(TEXT)  # the oldest has gone


async def test_shared_pages_count_once(target: Target, stepper: WatchingStepper) -> None:
    """Four users of one text, in room for two that share nothing."""
    need = stepper.most_nbytes_of(len(TEXT) + SHORT.max_tokens)
    async with server(stepper, kv_bytes=2 * need + need // 2) as running, channel_to(running) as channel:
        assert running.host.services.conversations_that_fit(len(TEXT) + SHORT.max_tokens) == 2
        peers = [Peer(channel) for _ in range(4)]
        await answer(peers[0])
        for peer in peers[1:]:
            await peer.open(run_ahead=False, reused_state=True)
            await peer.ask(TEXT, SHORT)
        for peer in peers[1:]:
            await peer.verdict()
        assert stepper.most_nbytes <= running.host.services.pool.promised <= running.host.services.pool.budget


class Client:
    """One of many whose texts begin alike, and who do what clients do."""

    def __init__(self, channel: grpc.aio.Channel, target: Target, seed: int) -> None:
        self.channel, self.target, self.chance = channel, target, random.Random(seed)
        self.peer = HastyPeer(channel)
        self.token = b""

    def text(self) -> list[int]:
        own = [self.chance.randrange(VOCAB) for _ in range(self.chance.choice([1, 5, 30]))]
        return [*TEXT[: self.chance.choice([0, 63, 64, 65, 128, 130])], *own]

    def settings(self) -> AnswerSettings:
        return AnswerSettings(
            Sampling(self.chance.choice([0.0, 1.0]), seed=self.chance.randrange(99)),
            max_tokens=self.chance.choice([1, 8, 30]),
            ignore_end_of_text=True,
        )

    async def open(self, **fields: Any) -> None:
        fields |= {"run_ahead": self.chance.random() < 0.7, "reused_state": self.chance.random() < 0.5}
        opened = await self.peer.open(memory=self.chance.random() < 0.8, **fields)
        self.token = opened.resume_token

    async def turn(self) -> None:
        """One question, which the server may have no room for."""
        try:
            await self.ask()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            self.peer = HastyPeer(self.channel)

    async def ask(self) -> None:
        """A question that is read to its end, broken off, or overtaken by another."""
        way = self.chance.choice(["read", "read", "stop", "cut", "again", "bye", "generate"])
        text, settings = self.text(), self.settings()
        expected, _ = plain_text(self.target, text, settings)
        if way == "generate":
            assert (await generate(self.channel, text, settings))[0] == expected
            return
        if self.peer.opened is None:
            await self.open()
        common = next((i for i, (a, b) in enumerate(zip(self.peer.tokens, text, strict=False)) if a != b), None)
        common = min(len(self.peer.tokens), len(text) - 1) if common is None else min(common, len(text) - 1)
        self.peer.crop(common)
        await self.peer.ask(text[common:], settings)
        seen = len(self.peer.verdicts)
        steps = 1000 if way in ("read", "bye") else self.chance.randrange(3)
        for _ in range(steps):
            await self.peer.verdict()
            assert self.peer.tokens[len(text) :] == expected[: len(self.peer.tokens) - len(text)]
            if self.peer.verdicts[-1].finish:
                break
            done = len(self.peer.tokens) - len(text)
            await self.peer.draft(expected[done : done + 2])
        if way == "stop" and (len(self.peer.verdicts) == seen or not self.peer.verdicts[-1].finish):
            await self.peer.send(stop=pb.Stop(ask=self.peer.asks))
            while len(self.peer.verdicts) == seen or not self.peer.verdicts[-1].finish:
                await self.peer.verdict()
        elif way == "bye":
            await self.peer.bye()
            self.peer = HastyPeer(self.channel)
        elif way in ("cut", "again"):
            self.peer.call.cancel()
            token = self.token if way == "again" else b""
            self.peer = HastyPeer(self.channel)
            await self.open(tokens=text if way == "again" else [], resume_token=token)


@pytest.mark.parametrize("conversations", [2, 3, 12])
@pytest.mark.parametrize("seed", range(2))
async def test_many_that_share_what_they_may_get_the_targets_text(
    target: Target, stepper: WatchingStepper, monkeypatch: pytest.MonkeyPatch, conversations: int, seed: int
) -> None:
    """In room for all, and in room for so few that pages are dropped and questions refused."""
    adopted: list[int] = []
    take_over = PrefixSharing.take_over

    def count(sharing: PrefixSharing, adoption: Adoption) -> None:
        adopted.append(adoption.tokens)
        take_over(sharing, adoption)

    monkeypatch.setattr(PrefixSharing, "take_over", count)
    room = conversations * stepper.most_nbytes_of(CONTEXT)
    async with server(stepper, kv_bytes=room, detached_seconds=5) as running, channel_to(running) as channel:

        async def run(number: int) -> None:
            client = Client(channel, target, 100 * seed + number)
            for _ in range(8):
                await client.turn()

        await asyncio.gather(*(run(number) for number in range(8)))
        host = running.host
        assert stepper.most_nbytes <= host.services.pool.budget
        assert host.services.pool.promised <= host.services.pool.budget
        assert len(adopted) > 5
        for live in host.services.registry.live_sessions:
            host.services.registry.close(live)
        assert host.services.pool.promised == host.services.prefixes.nbytes == host.services.prefixes.spare_nbytes
        await until(lambda: stepper.held_nbytes() == host.services.prefixes.nbytes)
        host.services.prefixes.drop(host.services.prefixes.nbytes)
        await until(lambda: stepper.held_nbytes() == 0)
