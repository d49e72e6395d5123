from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_server.feed import Chunk, Plane
from moa_server.frames import memory_frame, parse, verdict_frame
from moa_server.slot import Verdict
from moa_server.stepper import CodedRows
from moa_shared.answer import Finish
from moa_shared.codec import Codec
from moa_shared.errors import ProtocolError


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    try:
        frame = parse(pb.ClientFrame, data, 100)
    except ProtocolError as error:
        assert "bytes" in error.message  # noqa: PT017 (either outcome is right)
    else:
        assert isinstance(frame, pb.ClientFrame)
        assert len(data) <= 100


def test_a_message_that_is_too_long() -> None:
    with pytest.raises(ProtocolError, match="at most 10 bytes, got 11"):
        parse(pb.ClientFrame, bytes(11), 10)


def test_a_verdict_says_everything() -> None:
    frame = verdict_frame(Verdict(5, 3, 7, 99, (1, 2), Finish.STOP, accepted=1, drafted=4, stale=2, step_ms=1.5))
    assert frame.verdict == pb.Verdict(
        ask=5,
        epoch=3,
        base=7,
        prefix_hash=99,
        tokens=[1, 2],
        finish=pb.FINISH_STOP,
        accepted=1,
        drafted=4,
        stale_nodes=2,
        step_ms=1.5,
    )


def test_memory_says_its_plane_and_codec() -> None:
    frame = memory_frame(CodedRows(Chunk(Plane.REUSED_STATE, 5, 2, Codec.INT8, 4), b"rows"), 0x0102030405060708)
    assert frame.memory == pb.Memory(
        start=5, count=2, codec=pb.CODEC_INT8, payload=b"rows", plane=pb.PLANE_REUSED_STATE, prefix_hash=0x05060708
    )
