"""Sessions that share the pages of a prefix: what is read once is not read again, and nobody notices otherwise."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_kernels import Page
from moa_server.access import keys as keys_module
from moa_server.access.limits import Caller
from moa_server.app import RunningServer
from moa_server.engine.live_session import LiveSession
from moa_server.engine.shared_pages import PrefixIndex
from moa_server.engine.stepper import SessionTensors, Stepper, Work
from moa_server.session.memory_feed import most_nbytes
from moa_server.verifier import Target, TargetOutput
from moa_server.verifier.kernel_target import KernelCache
from moa_shared.protocol.finish_rule import AnswerSettings

from tests.net.server_peer import CONTEXT, VOCAB, Peer, make_host, plain_text, serving, toy_source, until
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
        self.index: PrefixIndex[LiveSession] | None = None
        self._all: list[SessionTensors] = []

    def new_tensors(self) -> SessionTensors:
        tensors = super().new_tensors()
        self._all.append(tensors)
        return tensors

    def held_nbytes(self) -> int:
        pages = {id(page): page for tensors in self._all for page in pages_of(tensors)}
        texts = [*self.index._roots.values()] if self.index is not None else []
        while texts:
            text = texts.pop()
            texts += text.pages.values()
            pages |= {id(page): page for page in (text.keys_values, *text.states.values()) if page is not None}
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
    stepper.index = host.services.engine.pages.index
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


@pytest.mark.parametrize("share", ["off", "client", "all"])
async def test_clients_share_only_what_the_operator_allows(
    stepper: WatchingStepper, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    # With its port: two connections are two clients.
    monkeypatch.setattr(keys_module, "caller_without_key", lambda peer, _: Caller(peer, peer))
    async with server(stepper, share_prefixes=share) as running, channel_to(running) as one, channel_to(running) as two:
        first = await answer(Peer(one))
        before = stepper.fed
        assert await answer(Peer(one)) == first
        assert (stepper.fed - before < PAGE) is (share != "off")
        before = stepper.fed
        assert await answer(Peer(two)) == first
        assert (stepper.fed - before < PAGE) is (share == "all")


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
