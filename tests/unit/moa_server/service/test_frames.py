from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_server.engine.stepper import CodedRows
from moa_server.memory.feed import Chunk
from moa_server.service.frames import check_lengths, memory_frame, merge_verdicts, nodes_of, parse, verdict_frame
from moa_shared.errors import ContextLengthError, MoaError, ProtocolError, TreeError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane, Verdict

from tests.support.messages import raises


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
    with raises(
        ProtocolError,
        snapshot("Expected a message of at most 10 bytes, got 11. Send less at once (Limits.frame_bytes)."),
    ):
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


MOST = 8
TOO_LONG = [1] * (MOST + 1)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (pb.ClientFrame(open=pb.Open(tokens=TOO_LONG)), ContextLengthError),
        (pb.ClientFrame(open=pb.Open(ask=pb.Ask(tokens=TOO_LONG))), ContextLengthError),
        (pb.ClientFrame(ask=pb.Ask(tokens=TOO_LONG)), ContextLengthError),
        (pb.ClientFrame(draft=pb.Draft(tokens=TOO_LONG)), TreeError),
        (pb.ClientFrame(draft=pb.Draft(parents=TOO_LONG)), TreeError),
        (pb.ClientFrame(ask=pb.Ask(provisional=pb.Draft(tokens=TOO_LONG))), TreeError),
        (pb.ClientFrame(open=pb.Open(ask=pb.Ask(provisional=pb.Draft(tokens=TOO_LONG)))), TreeError),
    ],
)
def test_a_frame_of_too_many_tokens(frame: pb.ClientFrame, kind: type[MoaError]) -> None:
    with pytest.raises(kind, match=r"9 .*8"):
        check_lengths(frame, MOST)
    check_lengths(frame, MOST + 1)


def test_nodes_are_counted_wherever_they_are() -> None:
    draft = pb.Draft(tokens=[1, 2, 3])
    for frame in (
        pb.ClientFrame(draft=draft),
        pb.ClientFrame(ask=pb.Ask(tokens=[4], provisional=draft)),
        pb.ClientFrame(open=pb.Open(tokens=[4], ask=pb.Ask(provisional=draft))),
    ):
        assert nodes_of(frame) == 3
    assert nodes_of(pb.ClientFrame(open=pb.Open(tokens=[1]))) == 0


def verdict_of(base: int, *tokens: int, **fields: Any) -> pb.ServerFrame:
    return pb.ServerFrame(verdict=pb.Verdict(base=base, prefix_hash=base, tokens=tokens, **fields))


def test_verdicts_that_continue_each_other_are_one() -> None:
    frame = verdict_of(3, 7, 8, epoch=1, accepted=1, drafted=4, stale_nodes=2, step_ms=5.0)
    later = verdict_of(5, 9, epoch=2, accepted=0, drafted=3, stale_nodes=1, step_ms=6.0, finish=pb.FINISH_STOP)
    assert merge_verdicts(frame, later)
    assert frame == verdict_of(
        3, 7, 8, 9, epoch=2, accepted=1, drafted=7, stale_nodes=3, step_ms=6.0, finish=pb.FINISH_STOP
    )


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (verdict_of(3, 7), verdict_of(3, 7)),  # repeats
        (verdict_of(3, 7), verdict_of(5, 9)),  # leaves a gap
        (verdict_of(3, 7, finish=pb.FINISH_STOP), verdict_of(4, 9)),  # of another answer
        (pb.ServerFrame(go_away=pb.GoAway()), verdict_of(0, 9)),
        (verdict_of(0), pb.ServerFrame(go_away=pb.GoAway())),
    ],
)
def test_other_frames_stay_apart(earlier: pb.ServerFrame, later: pb.ServerFrame) -> None:
    before = pb.ServerFrame.FromString(earlier.SerializeToString())
    assert not merge_verdicts(earlier, later)
    assert earlier == before


def test_verdicts_of_two_questions_are_not_merged() -> None:
    earlier = pb.ServerFrame(verdict=pb.Verdict(ask=1, base=3, tokens=[7]))
    assert not merge_verdicts(earlier, pb.ServerFrame(verdict=pb.Verdict(ask=2, base=4, tokens=[8])))
    assert merge_verdicts(earlier, pb.ServerFrame(verdict=pb.Verdict(ask=1, base=4, tokens=[8])))
