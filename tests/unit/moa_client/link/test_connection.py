"""A connection: one stream at a time; the order of servers, and the search for one after a loss."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link import connection
from moa_client.link.fleet import Fleet, connect
from moa_client.link.security import Security
from moa_client.link.server import Server, ServerRank
from moa_shared.errors import UnavailableError
from moa_shared.programs.addresses import MOST_SUCCESSORS
from moa_shared.protocol.messages import Draft
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_testing import World
from moa_testing.models import IDENTITY

from tests.unit.moa_testing.stories import simulated

Happened = connection.FrameReceived | connection.StreamOpened | connection.StreamLost


def verdict(number: int) -> pb.ServerFrame:
    return pb.ServerFrame(verdict=pb.Verdict(tokens=[number]))


def beat(number: int) -> pb.ClientFrame:
    return pb.ClientFrame(beat=pb.Beat(stamp=number))


class FakeStream:
    """A stream to a server that says what the test says."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[pb.ServerFrame | None] = asyncio.Queue()  # None: it breaks
        self.sent: list[pb.ClientFrame] = []
        self.is_stuck = self.is_cancelled = False

    async def send(self, frame: pb.ClientFrame) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        self.sent.append(frame)

    async def receive(self) -> pb.ServerFrame:
        if (frame := await self.incoming.get()) is None:
            raise UnavailableError("The stream broke.")
        return frame

    def cancel(self) -> None:
        self.is_cancelled = True
        self.incoming.put_nowait(None)


class FakeServer(Server):
    def __init__(self) -> None:
        super().__init__("localhost:1", 5.0, 5.0)
        self.streams: list[FakeStream] = []

    async def open(self, *_: object, **__: object) -> tuple[Any, pb.Opened]:
        self.streams.append(FakeStream())
        return self.streams[-1], pb.Opened()


class Harness:
    def __init__(self) -> None:
        self.server, self.inbox = FakeServer(), asyncio.Queue[Happened]()
        self.connection = connection.ServerConnection(
            Fleet([self.server]), lambda _: pb.Open(), self.inbox.put_nowait, PrefixHashes()
        )

    async def opened(self) -> FakeStream:
        self.connection.start()
        assert isinstance(await self.next(), connection.StreamOpened)
        return self.server.streams[-1]

    async def next(self) -> Happened:
        happened = await self.inbox.get()
        assert self.connection.accept(happened)
        return happened


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    await made.connection.drop()


async def settled(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (what it waits for has no event)
        await asyncio.sleep(0)


async def test_a_stream_is_read_ahead_of_its_reader_by_so_many_frames(harness: Harness) -> None:
    stream = await harness.opened()
    for number in range(connection.READ_AHEAD + 2):
        stream.incoming.put_nowait(verdict(number))
    await settled(lambda: stream.incoming.qsize() == 1)
    assert harness.inbox.qsize() == connection.READ_AHEAD  # one more was read, and waits
    await harness.next()
    await settled(lambda: harness.inbox.qsize() == connection.READ_AHEAD)


async def test_a_transport_that_accepts_nothing_is_given_up(harness: Harness) -> None:
    stream = await harness.opened()
    stream.is_stuck = True
    harness.connection.queue_frame(beat(0))
    await asyncio.sleep(0)
    for number in range(connection.WRITE_AHEAD + 1):
        harness.connection.queue_frame(beat(number))
    assert stream.is_cancelled
    assert isinstance(await harness.next(), connection.StreamLost)


async def test_a_draft_that_was_not_sent_is_not_continued(harness: Harness) -> None:
    harness.connection.send_draft(Draft(1, 4, 99, 0, (7,)))
    stream = await harness.opened()
    harness.connection.send_draft(Draft(1, 4, 0, 1, (8,)))
    await settled(lambda: bool(stream.sent))
    assert stream.sent == [pb.ClientFrame(draft=pb.Draft(epoch=1, base=4, first_node=1, tokens=[8]))]


NEAR = ServerRank(rtt_ms=5.0, step_ms=10.0, has_model=True)
FAR = ServerRank(rtt_ms=80.0, step_ms=10.0, has_model=True)
READS = replace(NEAR, unread_tokens=60, read_ms=0.6)
NOW = 100.0


@pytest.mark.parametrize(("standings", "order"), [
    ([FAR, NEAR], [1, 0]),
    ([NEAR, NEAR], [0, 1]),  # the user's order decides a tie
    ([replace(NEAR, load=0.9), FAR], [1, 0]),  # a step there takes ten times as long
    ([replace(NEAR, load=1.0), FAR], [1, 0]),
    ([replace(NEAR, step_ms=200.0), FAR], [1, 0]),
    ([ServerRank(), FAR], [1, 0]),  # nothing is known about the first
    ([replace(NEAR, has_model=False), FAR], [1, 0]),
    ([replace(NEAR, has_drafter=False), FAR], [1, 0]),
    ([replace(NEAR, has_execution=False), FAR], [1, 0]),
    ([replace(NEAR, has_execution=False), replace(FAR, has_drafter=False)], [1, 0]),
    ([NEAR, replace(FAR, has_execution=False), replace(FAR, avoid_until=NOW + 1)], [0, 1, 2]),
    ([replace(NEAR, avoid_until=NOW + 1), FAR], [1, 0]),
    ([replace(NEAR, avoid_until=NOW), FAR], [0, 1]),
    # whoever holds the text is taken, until its answers are so slow that reading elsewhere is quicker
    ([READS, NEAR], [1, 0]),
    ([READS, replace(NEAR, load=0.7)], [1, 0]),
    ([READS, replace(NEAR, load=0.9)], [0, 1]),
    ([READS, FAR], [0, 1]),
    ([replace(READS, load=0.7), FAR], [1, 0]),  # its load delays what it reads, too
    ([replace(READS, read_ms=0.0), FAR], [0, 1]),  # an older version that does not say how fast it reads
    ([replace(NEAR, avoid_until=NOW + 2), replace(FAR, avoid_until=NOW + 1)], [1, 0]),
])  # fmt: skip
def test_the_order_of_servers(standings: list[ServerRank], order: list[int]) -> None:
    assert sorted(range(len(standings)), key=lambda index: standings[index].place(NOW)) == order


@simulated
async def test_one_of_the_same_execution_is_waited_for(world: World) -> None:
    odd = pb.Identity(execution=b"odd")
    odd.MergeFrom(pb.Identity(target_id="toy", target_fingerprint=b"t", tokenizer_hash=b"k"))
    world.start("odd", identity=odd)
    world.start("three")
    fleet = Fleet([world.server(name) for name in ("one", "odd", "three")])
    await fleet.describe()
    fleet.servers[0].rtt_ms = 1.0
    chat = world.chat(fleet=fleet)

    def lose() -> None:
        world.link("three").cut(seconds=0.3)
        world.link().stop()

    await chat.then(lose, committed=6).ask()
    assert chat.engine.connection.dialer.server.address == world.address("three")


@simulated
async def test_a_call_is_made_again_at_a_server_that_the_lost_one_had_named(world: World) -> None:
    world.start("two")
    world.host().lifecycle.fleet.update([world.address("two")])
    fleet = Fleet([world.server()])
    await fleet.describe()
    world.link().stop()
    assert (await fleet.call_best(IDENTITY, lambda server: server.describe())).identity == IDENTITY
    assert [each.error is None for each in fleet.servers] == [False, True]


async def test_names_are_few_and_lead_to_nobody_s_own_machine() -> None:
    tls = Security(tls=True)
    far = Server("198.51.100.1:5", 1.0, 1.0, tls)
    async with connect([far, Server("198.51.100.2:5", 1.0, 1.0, tls)]) as route:
        here = ["localhost:1", "127.0.0.1:2", "[::1]:3", "0.0.0.0:4", "a.localhost:5", "[::ffff:127.0.0.1]:6"]
        route.follow([*here, "127.1:1", "no address", "x:0", "x:99999", "http://x:1"], far)
        assert len(route.servers) == 2
        route.follow([f"198.51.100.{number}:7" for number in range(20)], far)
        route.follow([f"203.0.113.{number}:7" for number in range(20)], far)
        assert len(route.servers) == 2 + MOST_SUCCESSORS


async def test_a_key_is_not_sent_in_the_clear_to_whom_a_server_names() -> None:
    near = Server("127.0.0.1:5", 1.0, 1.0, Security(key="secret"))
    async with connect([near, Server("127.0.0.1:6", 1.0, 1.0)]) as route:
        route.follow(["198.51.100.1:7"], near)
        assert [each.address for each in route.servers] == ["127.0.0.1:5", "127.0.0.1:6"]


async def test_a_replica_that_is_named_by_its_number_has_its_server_s_certificate() -> None:
    tls = Security(tls=True)
    named, numbered = Server("gpu.example:5", 1.0, 1.0, tls), Server("198.51.100.1:5", 1.0, 1.0, tls)
    by_number, by_name = named.peer("198.51.100.2:6"), named.peer("two.example:6")
    others = [by_number, by_name, by_number.peer("198.51.100.3:6"), numbered.peer("198.51.100.2:6")]
    names = [each.security.server_name for each in others]
    for each in (named, numbered, *others):
        await each.close()
    assert names == ["gpu.example", "", "gpu.example", ""]
