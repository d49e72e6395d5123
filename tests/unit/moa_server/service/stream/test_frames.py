from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_server.service.stream.frames import check_lengths, merge_verdicts, parse_frame
from moa_shared.errors import ContextLengthError, MoaError, ProtocolError, TreeError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.messages import Verdict


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    try:
        frame = parse_frame(pb.ClientFrame, data, 100)
    except ProtocolError as error:
        assert "bytes" in error.message  # noqa: PT017 (either outcome is right)
    else:
        assert isinstance(frame, pb.ClientFrame)
        assert len(data) <= 100


def test_a_message_that_is_too_long() -> None:
    with pytest.raises(ProtocolError, match="Expected a message of at most"):
        parse_frame(pb.ClientFrame, bytes(11), 10)


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


def verdict_of(base: int, *tokens: int, ask: int = 1, finish: Finish = Finish.UNFINISHED, **fields: Any) -> Verdict:
    return Verdict(ask, base, base, list(tokens), finish, **fields)


def test_verdicts_that_continue_each_other_are_one() -> None:
    verdict = verdict_of(3, 7, 8, accepted=1, drafted=4, stale=2, step_ms=5.0, server_drafted=2, server_accepted=1)
    later = verdict_of(5, 9, drafted=3, stale=1, step_ms=6.0, finish=Finish.STOP, server_drafted=3, least_chance=0.5)
    assert merge_verdicts(verdict, later) == verdict_of(
        *(3, 7, 8, 9),
        finish=Finish.STOP,
        accepted=1,
        drafted=7,
        stale=3,
        step_ms=6.0,
        server_drafted=5,
        server_accepted=1,
        least_chance=0.5,
    )


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (verdict_of(3, 7), verdict_of(3, 7)),  # repeats
        (verdict_of(3, 7), verdict_of(5, 9)),  # leaves a gap
        (verdict_of(3, 7, finish=Finish.STOP), verdict_of(4, 9)),  # after the answer's end
        (verdict_of(3, 7), verdict_of(4, 9, ask=2)),  # of another question
    ],
)
def test_other_verdicts_stay_apart(earlier: Verdict, later: Verdict) -> None:
    assert merge_verdicts(earlier, later) is None
