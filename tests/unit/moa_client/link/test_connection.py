"""A connection: one stream at a time, and everything that happens in order, with the number of its stream."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.link import connection
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.link.stream import Stream, StreamTraffic
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


async def test_a_server_that_is_gone_needs_no_goodbye() -> None:
    call = Mock(write=AsyncMock(side_effect=asyncio.InvalidStateError))
    await Stream(call, StreamTraffic(), AsyncMock()).say_goodbye()
    call.cancel.assert_called_once_with()


def test_500_clients_that_lose_a_server_at_once_do_not_come_back_at_once() -> None:
    """In virtual time: the server is away for 5 s, then takes in 256 and tells the others to come in 2 s."""
    clients = [connection.Backoff(random.Random(seed)) for seed in range(500)]
    dials: Counter[int] = Counter()  # by tenths of a second
    due = sorted((client.next_seconds(), number) for number, client in enumerate(clients))
    taken_in: list[int] = []
    while due:
        now, number = due.pop(0)
        dials[int(10 * now)] += 1
        if now >= 7.0 or (now >= 5.0 and len(taken_in) < 256):
            taken_in.append(number)
            continue
        if now >= 5.0:
            clients[number].not_before(2.0)
        due.append((now + clients[number].next_seconds(), number))
        due.sort()
    assert sorted(taken_in) == list(range(500))
    assert max(count for tenth, count in dials.items() if tenth >= 10) < 100
    assert sum(dials.values()) < 10 * 500
