"""Pages of a prefix that sessions share: what is read once is not read again, and nobody notices otherwise. Of two servers,
a conversation goes to the one that has read its text, unless that has no room.
"""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Ended
from moa_server.access import keys as keys_module
from moa_server.access.limits import Caller
from moa_server.engine.schedule import Schedule
from moa_server.engine.stepper import Stepper, Work
from moa_server.service.host import Host
from moa_server.verifier import Target, TargetOutput
from moa_shared.protocol.messages import AnswerSettings, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.net.client_device import device
from tests.net.client_talk import Screen, Servers, serving_now, talking_to, watch
from tests.net.server_peer import CONTEXT, VOCAB, Peer, channel_to, make_host, plain_text, serving, toy_source, until
from tests.support.tiny_models import HYBRID, tiny_kernel_target, tiny_model

PAGE = 64
SHORT = AnswerSettings(max_tokens=6, ignore_end_of_text=True)
TEXT = [random.Random(7).randrange(VOCAB) for _ in range(150)]  # two full pages and more


class WatchingStepper(Stepper):
    """Counts the rows that forwards feed."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, [toy_source(target)])
        self.fed = 0

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        self.fed += sum(len(each.plan.feed) for each in work)
        return super().forward_all(work)


@pytest.fixture(params=["", HYBRID])
def stepper(int8_target: Target, request: pytest.FixtureRequest) -> WatchingStepper:
    made = request.param and tiny_kernel_target(tiny_model(request.param, max_position_embeddings=CONTEXT))
    return WatchingStepper(made or int8_target)


async def answer(peer: Peer, text: Sequence[int] = TEXT, *, reused_state: bool = True) -> list[int]:
    """Opens, asks, and reads the answer to its end."""
    await peer.open(run_ahead=True, reused_state=reused_state)
    return await peer.answer(text, SHORT)


async def rows_of(peer: Peer, stop: int) -> dict[int, list[bytes]]:
    """The bytes of each row before `stop`, by plane."""
    rows: dict[int, list[bytes]] = {}
    await peer.send(credit=pb.Credit(bytes=1 << 20))  # more than is sent at first
    for plane in (pb.PLANE_MEMORY, pb.PLANE_REUSED_STATE):
        held = await peer.rows(stop, plane)
        rows[plane] = [
            frame.payload[(place - frame.start) * size :][:size]
            for place, frame in sorted(held.items())
            if (size := len(frame.payload) // frame.count)
        ][:stop]
    return rows


async def test_the_second_user_reads_only_what_is_new_and_gets_the_same_bits(stepper: WatchingStepper) -> None:
    expected, _ = plain_text(stepper.target, TEXT, SHORT)
    async with serving(make_host(stepper.target, stepper=stepper)) as running, channel_to(running) as channel:
        first, second = Peer(channel), Peer(channel)
        assert await answer(first) == expected
        afresh, before = await rows_of(first, len(TEXT)), stepper.fed
        assert before >= len(TEXT)
        assert await answer(second) == expected
        assert stepper.fed - before < PAGE
        assert await rows_of(second, len(TEXT)) == afresh


@pytest.mark.parametrize("ends", ["bye", "cut"])
async def test_a_client_that_has_lost_its_token_finds_its_text(stepper: WatchingStepper, ends: str) -> None:
    async with serving(make_host(stepper.target, stepper=stepper)) as running, channel_to(running) as channel:
        registry, peer = running.host.services.registry, Peer(channel)
        await answer(peer)
        text = [*peer.tokens, 5, 6]
        if ends == "bye":
            await peer.bye()
            assert len(registry) == 0
        else:
            peer.call.cancel()
            await until(lambda: registry.detached == 1)
        before = stepper.fed
        assert await answer(Peer(channel), text) == plain_text(stepper.target, text, SHORT)[0]
        assert stepper.fed - before < PAGE


LONG = AnswerSettings(max_tokens=30, ignore_end_of_text=True)
READ_MS = 500.0  # a page is dearer than any round trip, however busy the machine


class PagedServers(Servers):
    """Servers of a target that has pages to share."""

    def make(self, **settings: Any) -> Host:
        return make_host(self.target, **settings)


@pytest.fixture
async def servers(int8_target: Target, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    monkeypatch.setattr(Schedule, "read_ms", READ_MS)
    async with PagedServers(int8_target) as made:
        yield made


async def ask_at(servers: Servers, name: str, text: Sequence[int]) -> list[int]:
    """Asks one server, and says goodbye to it."""
    async with channel_to(servers.running[name]) as channel:
        peer = Peer(channel)
        got = await answer(peer, text, reused_state=False)
        await peer.bye()
    return got


async def served_at(servers: Servers, text: Sequence[int]) -> str:
    """Where a client goes that has never been here, if all are equally far away."""
    async with talking_to(servers.links(), device(servers.target, "none")) as (route, engine):
        for server in route.servers:
            server.rtt_ms = 1.0
        screen = Screen()
        await watch(engine, screen, text, SHORT)
        assert screen.committed == plain_text(servers.target, text, SHORT)[0]
        assert screen.end == Ended(Finish.MAX_TOKENS)
        return await serving_now(engine, servers)


async def test_a_conversation_goes_where_its_text_is_and_elsewhere_if_there_is_no_room(servers: Servers) -> None:
    await servers.start("one")
    two = await servers.start("two", max_streams=1)
    assert await served_at(servers, [7] * 20) == "one"  # the order of the list, where nothing else counts
    said = await ask_at(servers, "two", TEXT)
    assert await served_at(servers, [*TEXT, *said, 5, 6]) == "two"  # the next turn
    assert await served_at(servers, [*TEXT[:PAGE], 9, 9, 4]) == "two"  # another one with this beginning
    async with channel_to(two) as channel:
        busy = Peer(channel)
        await busy.open()  # it waits for drafts, so that the answer does not end
        await busy.ask([5, 17, 42], LONG)
        await busy.verdict()
        assert two.host.load == 1
        assert await served_at(servers, [*TEXT[:PAGE], 4, 4, 9]) == "one"
        await busy.bye()
    await until(lambda: two.host.load == 0)


@pytest.mark.parametrize(
    ("share_prefixes", "own", "others"), [("client", 2 * PAGE, 0), ("all", 2 * PAGE, 2 * PAGE), ("off", 0, 0)]
)
async def test_an_asker_learns_nothing_of_what_it_does_not_share(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, share_prefixes: str, own: int, others: int
) -> None:
    one = await servers.start("one", share_prefixes=share_prefixes)
    await ask_at(servers, "one", TEXT)
    hashes = PrefixHashes(TEXT).named()
    async with channel_to(one) as channel:

        async def describe(hashes: Sequence[int]) -> pb.DescribeResponse:
            stub: Any = moa_pb2_grpc.MoaStub(channel)
            response: pb.DescribeResponse = await stub.Describe(pb.DescribeRequest(prefix_hashes=hashes))
            return response

        described = await describe(hashes)
        assert (described.cached_tokens, described.read_ms) == (own, READ_MS)
        assert (await describe(hashes[1:])).cached_tokens == 0  # the second page, without the first
        assert (await describe([*hashes, *range(10_000)])).cached_tokens == own
        assert (await describe([])).cached_tokens == 0
        monkeypatch.setattr(keys_module.Gate, "admit", lambda *_: Caller("another", "ipv4:127.0.0.1:9"))
        assert (await describe(hashes)).cached_tokens == others
