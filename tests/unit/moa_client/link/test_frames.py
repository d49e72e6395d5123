"""Frames of one stream: what a draft leaves out depends on what the same stream has been sent."""

from __future__ import annotations

from typing import cast

from moa.v1 import moa_pb2 as pb
from moa_client.link.connection import ServerConnection
from moa_client.link.frames import FrameReader, FrameSender
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Draft, Memory, Plane, Verdict

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


def test_a_verdict_gives_the_rows_of_both_planes() -> None:
    reader = FrameReader()
    rows = [
        pb.Memory(codec=pb.CODEC_INT4, payload=b"a", plane=pb.PLANE_REUSED_STATE),
        pb.Memory(start=2, count=1, codec=pb.CODEC_INT4, payload=b"b"),
    ]
    list(reader.read(pb.ServerFrame(verdict=pb.Verdict(ask=1, base=4, prefix_hash=5, tokens=[7]))))
    assert list(reader.read(pb.ServerFrame(verdict=pb.Verdict(tokens=[8, 9], memory=rows)))) == [
        Verdict(1, 5, 0, (8, 9)),
        Memory(4, 2, Codec.INT4, b"a", Plane.REUSED_STATE, 0),
        Memory(2, 1, Codec.INT4, b"b", Plane.MEMORY, 0),
    ]
