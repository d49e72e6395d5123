"""The states of a stream: what its end and the server's end do to its session."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.access.limits import Caller
from moa_server.engine.live_session import LiveSession
from moa_server.service.host import Host
from moa_server.service.stream.converse import ConverseStream, StreamState
from moa_shared.errors import AuthenticationError, InternalError, MoaError, OverloadedError, ProtocolError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION

from tests.unit.moa_server.service.toy_services import IDENTITY, toy_host

OPEN = pb.ClientFrame(open=pb.Open(protocol_version=PROTOCOL_VERSION, identity=IDENTITY, tokens=[1, 2, 3]))
BEAT = pb.ClientFrame(beat=pb.Beat(stamp=7))
BYE = pb.ClientFrame(bye=pb.Bye())


class Client:
    """One stream without a network."""

    def __init__(self, host: Host) -> None:
        self.received: list[pb.ServerFrame] = []
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.stream = ConverseStream(host.services, host.lifecycle, self._receive, Caller("a"))
        self.task = asyncio.create_task(self.stream.run(self._sent()))

    async def send(self, *frames: pb.ClientFrame) -> None:
        """Sends frames, and lets the server do all that follows."""
        for frame in frames:
            self._frames.put_nowait(frame.SerializeToString())
        for _ in range(20):
            await asyncio.sleep(0)

    async def hang_up(self) -> None:
        self._frames.put_nowait(None)
        await self.task

    @property
    def kinds(self) -> list[str | None]:
        return [frame.WhichOneof("frame") for frame in self.received]

    async def _receive(self, frame: pb.ServerFrame) -> None:
        self.received.append(frame)

    async def _sent(self) -> AsyncIterator[bytes]:
        while (data := await self._frames.get()) is not None:
            yield data


@pytest.fixture
async def host() -> Host:
    return toy_host()


@asynccontextmanager
async def opened(host: Host) -> AsyncIterator[tuple[Client, LiveSession]]:
    client = Client(host)
    await client.send(OPEN)
    [live] = host.services.registry.live_sessions
    try:
        yield client, live
    finally:
        if not client.task.done():
            await client.hang_up()


async def test_a_stream_that_ends_without_bye_leaves_its_session_detached(host: Host) -> None:
    async with opened(host) as (client, live):
        assert client.kinds == ["opened"]
        await client.hang_up()
    assert host.services.registry.detached == 1
    assert not live.closed
    assert host.lifecycle.calls == 0


async def test_bye_frees_the_session_and_what_comes_after_it_is_not_looked_at(host: Host) -> None:
    async with opened(host) as (client, live):
        await client.send(BYE, pb.ClientFrame())
        await client.task
    assert live.closed
    assert client.stream.state is StreamState.ENDED
    assert len(host.services.registry) == 0


async def test_a_client_that_breaks_the_protocol_loses_its_session(host: Host) -> None:
    async with opened(host) as (client, live):
        await client.send(OPEN)
        with pytest.raises(ProtocolError):
            await client.task
    assert live.closed


async def test_a_beat_is_answered_unless_the_model_hangs(host: Host) -> None:
    async with opened(host) as (client, _):
        await client.send(BEAT)
        assert client.received[-1].beat == pb.Beat(stamp=7, reply=True)
        host.lifecycle.hangs = True
        await client.send(BEAT)
        assert client.kinds == ["opened", "beat"]


async def test_a_session_that_is_taken_over_goes_on_without_the_stream(host: Host) -> None:
    async with opened(host) as (client, live):
        client.stream.on_taken_over()
        await client.task
        assert client.kinds == ["opened", "go_away"]
        assert not live.closed
        assert host.services.registry.detached == 0  # it is the other stream's now


LOST, REVOKED = InternalError("lost"), AuthenticationError("revoked")


@pytest.mark.parametrize(
    ("end", "error", "is_closed"),
    [
        (lambda stream: stream.on_failure(LOST), InternalError, False),  # it is closed by who says so
        (lambda stream: stream.on_displaced(), OverloadedError, False),
        (lambda stream: stream.end_refused(REVOKED), AuthenticationError, True),
    ],
    ids=["lost", "displaced", "without access"],
)
async def test_a_stream_ends_with_the_reason(
    host: Host, end: Callable[[ConverseStream], None], error: type[MoaError], is_closed: bool
) -> None:
    async with opened(host) as (client, live):
        end(client.stream)
        with pytest.raises(error):
            await client.task
    assert live.closed is is_closed


async def test_an_idle_stream_is_ended_and_its_session_kept(host: Host) -> None:
    async with opened(host) as (client, live):
        client.stream.end_idle(since=0.0)
        assert not client.task.done()
        client.stream.end_idle(since=host.services.clock() + 1.0)
        await client.task
        assert client.received[-1].go_away.resume_token == live.token
    assert host.services.registry.detached == 1


async def test_a_draining_server_sends_idle_streams_away(host: Host) -> None:
    async with opened(host) as (client, live):
        host.lifecycle.drain()
        await client.task
        assert client.received[-1].go_away.resume_token == live.token
        await host.lifecycle.drained()
