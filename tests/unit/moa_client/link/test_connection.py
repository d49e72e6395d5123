"""A connection: one stream at a time, and everything that happens in order; and the order of servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link import connection
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server, ServerRank
from moa_shared.errors import UnavailableError
from moa_shared.protocol.messages import Draft
from moa_shared.protocol.prefix_hash import PrefixHashes

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
    async with asyncio.timeout(20.0):
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


@pytest.mark.parametrize(
    ("standings", "order"),
    [
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
        ([replace(READS, read_ms=0.0), FAR], [0, 1]),  # an older version that does not say how fast it reads
        ([replace(NEAR, avoid_until=NOW + 2), replace(FAR, avoid_until=NOW + 1)], [1, 0]),
    ],
)
def test_the_order_of_servers(standings: list[ServerRank], order: list[int]) -> None:
    assert sorted(range(len(standings)), key=lambda index: standings[index].place(NOW)) == order
