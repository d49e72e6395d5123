"""A connection: one stream at a time, and everything that happens in order, with the number of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link import connection
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
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
    """Opens such streams."""

    def __init__(self) -> None:
        super().__init__("localhost:1", 5.0, 5.0)
        self.streams: list[FakeStream] = []

    async def open(self, *_: object, **__: object) -> tuple[Any, pb.Opened]:
        self.streams.append(FakeStream())
        return self.streams[-1], pb.Opened()


class Harness:
    """A connection, its server, and its inbox."""

    def __init__(self) -> None:
        self.server, self.inbox = FakeServer(), asyncio.Queue[Happened]()
        self.connection = connection.ServerConnection(
            Fleet([self.server]), lambda _: pb.Open(), self.inbox.put_nowait, PrefixHashes()
        )

    async def opened(self) -> FakeStream:
        """Opens a stream, if none is open."""
        self.connection.start()
        assert isinstance(await self.next(), connection.StreamOpened)
        return self.server.streams[-1]

    async def next(self) -> Happened:
        """What has happened, and is accepted."""
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
    """Lets the tasks work until something is so."""
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
