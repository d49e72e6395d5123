"""One stream: what is counted, and the one error with which it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Event, LinkChanged, LinkState, ServerChanged
from moa_client.host.publisher import log_link_change
from moa_client.link import calls
from moa_client.link.calls import call_best
from moa_client.link.connection import ServerConnection
from moa_client.link.fleet import Fleet
from moa_client.link.frames import FrameSender
from moa_client.link.server import Server
from moa_client.link.stream import EOF, WRITE_FAILED, Stream, StreamTraffic
from moa_shared.errors import OverloadedError, ProtocolError
from moa_shared.protocol.messages import Draft

from tests.support.scripted_server import MODEL
from tests.unit.moa_client.link.test_server_choice import Home

BEAT = pb.ClientFrame(beat=pb.Beat(stamp=7))
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


class ScriptedCall:
    """One that brings what it is given, and then ends."""

    def __init__(self, *frames: object) -> None:
        self._frames = list(frames)
        self._status = grpc.StatusCode.OK, ""
        self._on_status: Callable[[ScriptedCall], None] = lambda _: None
        self.written: list[pb.ClientFrame] = []
        self.is_half_closed = self.is_cancelled = False
        self.is_over = False

    def end(self, status: grpc.StatusCode, details: str) -> None:
        self._status, self.is_over = (status, details), True
        self._on_status(self)

    def add_done_callback(self, callback: Callable[[ScriptedCall], None]) -> None:
        self._on_status = callback

    async def write(self, request: pb.ClientFrame) -> None:
        self._check()
        self.written.append(request)

    async def read(self) -> object:
        if self._frames:
            return self._frames.pop(0)
        self._check()
        self.end(*self._status)
        return EOF

    def _check(self) -> None:
        if self.is_over:
            status, details = self._status
            raise grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)

    async def done_writing(self) -> None:
        self.is_half_closed = True

    async def code(self) -> grpc.StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()

    def cancel(self) -> None:
        self.is_cancelled = True


async def test_that_a_write_failed_does_not_replace_why_the_call_ended() -> None:
    call = ScriptedCall()
    stream = Stream(call, StreamTraffic())
    call.end(FULL, "full")
    call.end(grpc.StatusCode.INTERNAL, WRITE_FAILED)
    with pytest.raises(OverloadedError):
        await stream.send(BEAT)


async def test_what_is_not_a_frame_is_refused() -> None:
    with pytest.raises(ProtocolError):
        await Stream(ScriptedCall(pb.Opened()), StreamTraffic()).receive()


async def test_the_text_of_a_goodbye_has_no_controls() -> None:
    frame = await Stream(ScriptedCall(pb.ServerFrame(go_away=pb.GoAway(reason="a\x1b[2Jb"))), StreamTraffic()).receive()
    assert "\x1b" not in frame.go_away.reason


async def test_a_server_that_is_gone_needs_no_goodbye() -> None:
    call, ended = ScriptedCall(), list[bool]()
    stream = Stream(call, StreamTraffic(), on_end=lambda: ended.append(True))
    call.end(grpc.StatusCode.UNAVAILABLE, "gone")
    await stream.say_goodbye()
    assert call.is_cancelled
    assert ended == [True]


async def address_of(server: Server) -> str:
    return server.address


async def test_a_call_is_made_again_at_a_server_that_the_lost_one_had_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_SECONDS", 0.01)
    home = Home()
    fleet = Fleet([home])
    await fleet.describe()
    home.fail()
    assert await call_best(fleet, MODEL, address_of, seconds=1.0) == home.other.address
    await fleet.close()


FIRST = Draft(1, 4, 99, 0, (7,))
SECOND = Draft(1, 4, 0, 1, (8,))


class Wire:
    """A connection that keeps what is sent while it is up."""

    def __init__(self) -> None:
        self.is_up = True
        self.stream_number = 1
        self.sent: list[pb.ClientFrame] = []

    def send(self, frame: pb.ClientFrame) -> None:
        if self.is_up:
            self.sent.append(frame)


def sender(wire: Wire) -> FrameSender:
    return FrameSender(cast(ServerConnection, wire))


def test_a_draft_that_was_not_sent_is_not_continued() -> None:
    wire = Wire()
    frames = sender(wire)
    wire.is_up = False
    frames.draft(FIRST)
    wire.is_up = True
    frames.draft(SECOND)
    assert wire.sent == [pb.ClientFrame(draft=pb.Draft(epoch=1, base=4, first_node=1, tokens=[8]))]


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (LinkChanged(LinkState.OFFLINE, "no frame for 1 s"), [(logging.WARNING, "link offline: no frame for 1 s")]),
        (LinkChanged(LinkState.BACK), [(logging.WARNING, "link back")]),
        (LinkChanged(LinkState.SLOW), [(logging.INFO, "link slow")]),
        (ServerChanged("model", "Another one."), [(logging.WARNING, "server replaced: Another one.")]),
        (Committed((1, 2)), []),
    ],
)
def test_only_the_link_and_the_server_are_logged(
    event: Event, lines: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "moa_client"):
        log_link_change(event)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == lines
