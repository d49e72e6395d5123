"""A stream over a server whose inference thread never starts: what frames, an Open and either end do to its session."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import cast
from unittest.mock import Mock, create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_server.access.limits import Caller
from moa_server.engine.live_session import Listener, Resume
from moa_server.service.converse import ConverseStream, check_lengths, parse_frame
from moa_server.service.handshake import Welcome, open_session
from moa_server.service.host import Host
from moa_shared import errors
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.memory_codec import Codec

from tests.net.server_peer import IDENTITY, make_host, tiny_target


@pytest.fixture
def host() -> Host:
    return make_host(tiny_target())


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    try:
        frame = parse_frame(pb.ClientFrame, data, 100)
    except errors.ProtocolError as error:
        assert "bytes" in error.message  # noqa: PT017 (either outcome is right)
    else:
        assert isinstance(frame, pb.ClientFrame)
        assert len(data) <= 100


MOST = 8
TOO_LONG = [1] * (MOST + 1)


@pytest.mark.parametrize(("frame", "kind"), [
    (pb.ClientFrame(open=pb.Open(tokens=TOO_LONG)), errors.ContextLengthError),
    (pb.ClientFrame(open=pb.Open(ask=pb.Ask(tokens=TOO_LONG))), errors.ContextLengthError),
    (pb.ClientFrame(ask=pb.Ask(tokens=TOO_LONG)), errors.ContextLengthError),
    (pb.ClientFrame(draft=pb.Draft(tokens=TOO_LONG)), errors.TreeError),
    (pb.ClientFrame(draft=pb.Draft(parents=TOO_LONG)), errors.TreeError),
    (pb.ClientFrame(ask=pb.Ask(provisional=pb.Draft(tokens=TOO_LONG))), errors.TreeError),
    (pb.ClientFrame(open=pb.Open(ask=pb.Ask(provisional=pb.Draft(tokens=TOO_LONG)))), errors.TreeError),
])  # fmt: skip
def test_a_frame_of_too_many_tokens(frame: pb.ClientFrame, kind: type[errors.MoaError]) -> None:
    with pytest.raises(kind, match=r"9 .*8"):
        check_lengths(frame, MOST)
    check_lengths(frame, MOST + 1)


TEXT = [1, 2, 3]
NEW_CODEC = cast(pb.Codec, 1000)  # of a client that is newer than this server


def shake(host: Host, more: pb.Open | None = None) -> Welcome:
    message = pb.Open(protocol_version=PROTOCOL_VERSION, identity=IDENTITY, tokens=TEXT)
    message.MergeFrom(more or pb.Open())
    return open_session(host, Caller("a"), create_autospec(Listener, instance=True), message)


async def test_a_client_that_comes_back_gets_its_session(host: Host) -> None:
    first = shake(host)
    host.services.registry.detach(first.live)
    again = shake(host, pb.Open(resume_token=first.opened.resume_token))
    assert again.live is first.live
    assert again.resume is Resume.READ_AGAIN  # no forward has run, so nothing is cached


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        (pb.Open(memory_from=4), errors.ProtocolError),
        (pb.Open(tokens=[99]), errors.TokenRangeError),
        (pb.Open(codecs=[NEW_CODEC]), errors.MismatchError),
        (pb.Open(identity=pb.Identity(target_id="another", target_fingerprint=b"o" * 32)), errors.MismatchError),
        (pb.Open(ask=pb.Ask(id=1, base=3, prefix_hash=5, tokens=[1])), errors.ProtocolError),
    ],
    ids=["memory beyond the text", "another vocabulary", "no codec in common", "another target", "no question"],
)
async def test_an_open_that_is_refused_leaves_the_session_to_its_stream(
    host: Host, more: pb.Open, kind: type[errors.MoaError]
) -> None:
    first = shake(host)
    before = cast(Mock, first.live.stream.listener)
    more.resume_token = first.opened.resume_token
    with pytest.raises(kind):
        shake(host, more)
    before.on_taken_over.assert_not_called()
    assert first.live.stream.listener is before
    assert (first.live.session.tokens, len(host.services.registry)) == (TEXT, 1)


async def test_of_the_codecs_offered_those_that_are_known_count_in_the_client_s_order(host: Host) -> None:
    welcome = shake(host, pb.Open(codecs=[pb.CODEC_INT4, NEW_CODEC, pb.CODEC_BF16]))
    assert (welcome.codecs, welcome.opened.codec) == ((Codec.INT4, Codec.BF16), pb.CODEC_INT4)
    assert shake(host).opened.codec == pb.Codec.Value("CODEC_UNSPECIFIED")  # it wants no memory


OPEN = pb.ClientFrame(open=pb.Open(protocol_version=PROTOCOL_VERSION, identity=IDENTITY, tokens=TEXT))


class Client:
    """One stream without a network."""

    def __init__(self, host: Host) -> None:
        self.received: list[pb.ServerFrame] = []
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.stream = ConverseStream(host, self._receive, Caller("a"))
        self.task = asyncio.create_task(self.stream.run(self._sent()))

    async def send(self, *frames: pb.ClientFrame | None) -> None:
        """Sends frames, and lets the server do all that follows. None: hangs up."""
        for frame in frames:
            self._frames.put_nowait(frame.SerializeToString() if frame is not None else None)
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def kinds(self) -> list[str | None]:
        return [frame.WhichOneof("frame") for frame in self.received]

    async def _receive(self, frame: pb.ServerFrame) -> None:
        self.received.append(frame)

    async def _sent(self) -> AsyncIterator[bytes]:
        while (data := await self._frames.get()) is not None:
            yield data


async def test_a_beat_is_answered_unless_the_model_hangs(host: Host) -> None:
    beat, client = pb.ClientFrame(beat=pb.Beat(stamp=7)), Client(host)
    await client.send(OPEN, beat)
    assert client.received[-1].beat == pb.Beat(stamp=7, reply=True)
    host.lifecycle.hangs = True
    await client.send(beat, None)
    assert client.kinds == ["opened", "beat"]
    await client.task


LOST, REVOKED = errors.InternalError("lost"), errors.AuthenticationError("revoked")
BYE = pb.ClientFrame(bye=pb.Bye())


@pytest.mark.parametrize(
    ("frames", "end", "error", "is_closed", "detached"),
    [
        ([None], None, None, False, 1),
        ([BYE, pb.ClientFrame()], None, None, True, 0),  # what comes after it is not looked at
        ([OPEN], None, errors.ProtocolError, True, 0),
        ([], lambda stream: stream.on_failure(LOST), errors.InternalError, False, 0),  # it is closed by who says so
        ([], lambda stream: stream.on_displaced(), errors.OverloadedError, False, 0),
        ([], lambda stream: stream.end_refused(REVOKED), errors.AuthenticationError, True, 0),
        ([], lambda stream: stream.on_taken_over(), None, False, 0),  # it is the other stream's now
        ([], lambda stream: stream.end_idle(since=math.inf), None, False, 1),
        ([], lambda stream: stream.drain(), None, False, 1),
    ],
    ids=["cut", "bye", "protocol broken", "lost", "displaced", "without access", "taken over", "idle", "draining"],
)
async def test_how_a_stream_ends_and_what_becomes_of_its_session(
    host: Host,
    frames: list[pb.ClientFrame | None],
    end: Callable[[ConverseStream], None] | None,
    error: type[errors.MoaError] | None,
    is_closed: bool,
    detached: int,
    request: pytest.FixtureRequest,
) -> None:
    client = Client(host)
    await client.send(OPEN)
    [live] = host.services.registry.live_sessions
    client.stream.end_idle(since=0.0)  # something was asked since then
    await client.send(*frames)
    if end is not None:
        end(client.stream)
        await client.send(None)  # the client hangs up, since it has read the last word
    with pytest.raises(error) if error is not None else nullcontext():
        await client.task
    assert (live.closed, host.services.registry.detached, host.lifecycle.calls) == (is_closed, detached, 0)
    leaves = request.node.callspec.id in ("taken over", "idle", "draining")
    assert client.kinds == ["opened", "go_away"][: 1 + leaves]
    assert client.received[-1].go_away.resume_token == (live.token if leaves and detached else b"")


async def test_a_draining_server_opens_nothing(host: Host) -> None:
    host.lifecycle.drain()
    await host.lifecycle.drained.wait()
    with pytest.raises(errors.UnavailableError):
        shake(host)
    assert len(host.services.registry) == 0
