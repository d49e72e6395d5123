"""Messages cross the wire and come back, alone and continued on one stream."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ProtocolError
from moa_shared.protocol import protobuf_messages
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish, Memory, Plane, Verdict
from moa_shared.protocol.prefix_hash import SHORT_HASH
from moa_shared.sampling.settings import Sampling

COUNTS = st.integers(0, 2**32 - 1)
TOKENS = st.lists(COUNTS, max_size=8).map(tuple)
HASHES = st.integers(0, 2**64 - 1)
SHORT_HASHES = st.integers(0, SHORT_HASH)
SAMPLINGS = st.builds(
    Sampling,
    st.just(0.0) | st.floats(2**-9, 10, width=32),
    st.integers(0, 1000),
    st.floats(0.125, 1, width=32),
    st.integers(0, 2**63),
    st.floats(0, 1),
    st.floats(0.5, 2),
    st.integers(-1, 100),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.dictionaries(COUNTS, st.floats(-100, 100), max_size=4).map(lambda bias: tuple(bias.items())),
)
SETTINGS = st.builds(
    AnswerSettings,
    SAMPLINGS,
    COUNTS,
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=64), max_size=16).map(tuple),
    st.booleans(),
    st.booleans(),
)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    first, tokens = draw(st.integers(0, 2**31)), draw(TOKENS)
    parents = tuple(draw(st.integers(-1, first + node - 1)) for node in range(draw(st.integers(0, len(tokens)))))
    return Draft(draw(COUNTS), draw(COUNTS), draw(SHORT_HASHES), first, tokens, parents)


DRAFTS = drafts()
ASKS = st.builds(Ask, st.integers(1, 2**32 - 1), COUNTS, HASHES, TOKENS, SETTINGS, COUNTS, st.none() | DRAFTS)
VERDICTS = st.builds(
    Verdict,
    *(COUNTS, COUNTS.filter(bool), SHORT_HASHES, TOKENS, st.sampled_from(Finish)),
    *(COUNTS, COUNTS, COUNTS, st.integers(0, 10**7).map(lambda hundredths: hundredths / 100)),
    *(COUNTS, COUNTS, st.integers(0, 100).map(lambda percent: percent / 100)),
)
CODECS: dict[type, tuple[Any, Any, Any]] = {
    Draft: (protobuf_messages.draft_to_proto, pb.Draft, protobuf_messages.draft_from_proto),
    Ask: (protobuf_messages.ask_to_proto, pb.Ask, protobuf_messages.ask_from_proto),
    Verdict: (
        lambda verdict: protobuf_messages.VerdictFrames().frame_of(verdict).verdict,
        pb.Verdict,
        protobuf_messages.VerdictFrames().read_verdict,
    ),
    Memory: (protobuf_messages.memory_to_proto, pb.Memory, protobuf_messages.memory_from_proto),
}
MEMORIES = st.builds(
    Memory, COUNTS, COUNTS, st.sampled_from(Codec), st.binary(max_size=20), st.sampled_from(Plane), COUNTS
)


@given(st.one_of(DRAFTS, ASKS, VERDICTS, MEMORIES))
def test_a_message_comes_back(message: Draft | Ask | Verdict | Memory) -> None:
    to_proto, kind, from_proto = CODECS[type(message)]
    assert from_proto(kind.FromString(to_proto(message).SerializeToString())) == message


@pytest.mark.parametrize(("kind", "wire", "message"), [
    (Ask, b"\x12\x01\x01", "an Ask with an id of 1 or more, got none"),
    (Verdict, b"\x10\x01\x30\x63", "a finish that this version knows, got 99"),
    (Memory, b"\x18\x63", "a codec that this version knows, got codec 99"),
    (Memory, b"\x18\x01\x28\x63", "memory of plane 0 or 1, got plane 99"),
])  # fmt: skip
def test_numbers_that_mean_nothing_here_are_refused(kind: type, wire: bytes, message: str) -> None:
    _, proto, from_proto = CODECS[kind]
    with pytest.raises(ProtocolError, match=message):
        from_proto(proto.FromString(wire))


@pytest.mark.parametrize(("chances", "message"), [
    ([pb.TokenChances(chosen=math.nan)], "chances that are numbers, got others"),
    ([pb.TokenChances(chosen=-1.0, tokens=[1], chances=[-math.inf])], "chances that are numbers, got others"),
    ([pb.TokenChances(chosen=-1.0, tokens=[1])], "chances of 1 likeliest tokens, got 0"),
    ([pb.TokenChances(chosen=-1.0)] * 2, "chances of 1 tokens, got of 2"),
])  # fmt: skip
def test_chances_that_are_none_are_refused(chances: list[pb.TokenChances], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        protobuf_messages.VerdictFrames().read_verdict(pb.Verdict(ask=1, base=1, tokens=[3], chances=chances))


SMALL = st.integers(1, 3)


@st.composite
def draft_streams(draw: st.DrawFn) -> list[Draft]:
    """Drafts that often continue the one before, as trees or chains, and often do not."""
    drafts: list[Draft] = []
    for _ in range(draw(st.integers(1, 8))):
        tokens = tuple(range(draw(st.integers(0, 4))))
        continues = draw(st.booleans())
        if drafts and continues:
            before = drafts[-1]
            first = before.first_node + len(before.tokens)
            epoch, base, prefix_hash = before.epoch, before.base, 0
        else:
            epoch, base, first, prefix_hash = draw(SMALL), draw(SMALL), draw(st.sampled_from([0, 300])), draw(SMALL)
        parents = tuple(draw(st.integers(-1, first + node - 1)) for node in range(len(tokens)))
        drafts.append(Draft(epoch, base, prefix_hash, first, tokens, draw(st.sampled_from([(), parents]))))
    return drafts


@given(draft_streams())
def test_drafts_come_back(drafts: list[Draft]) -> None:
    writer, reader = protobuf_messages.DraftFrames(), protobuf_messages.DraftFrames()
    for draft in drafts:
        assert reader.read_draft(pb.Draft.FromString(writer.write_draft(draft).SerializeToString())) == draft


@st.composite
def verdict_streams(draw: st.DrawFn) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for _ in range(draw(st.integers(1, 8))):
        ask, base = draw(SMALL), draw(SMALL)
        continues = draw(st.booleans())
        if verdicts and continues:
            ask, base = verdicts[-1].ask, verdicts[-1].base + len(verdicts[-1].tokens)
        finish = draw(st.sampled_from([Finish.UNFINISHED, Finish.STOP]))
        verdicts.append(Verdict(ask, base, draw(SMALL), tuple(range(draw(st.integers(0, 3)))), finish, step_ms=1.25))
    return verdicts


@given(verdict_streams())
def test_verdicts_come_back_but_for_hashes_of_those_that_continue(verdicts: list[Verdict]) -> None:
    writer, reader = protobuf_messages.VerdictFrames(), protobuf_messages.VerdictFrames()
    end: tuple[int, int] | None = None
    for verdict in verdicts:
        read = reader.read_verdict(pb.ServerFrame.FromString(writer.frame_of(verdict).SerializeToString()).verdict)
        continues = end == (verdict.ask, verdict.base)
        assert read == (replace(verdict, prefix_hash=0) if continues else verdict)
        end = verdict.ask, verdict.base + len(verdict.tokens)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.sampled_from(Plane)), max_size=3))
def test_rows_come_back_with_their_verdict(rows: list[tuple[int, int, Plane]]) -> None:
    verdict = Verdict(1, 6, 5, (7, 8, 9))
    memory = [Memory(start, count, Codec.INT4, b"rows", plane, 99) for start, count, plane in rows]
    message = pb.ServerFrame.FromString(
        protobuf_messages.VerdictFrames().frame_of(verdict, memory).SerializeToString()
    ).verdict
    read = protobuf_messages.VerdictFrames().read_verdict(message)
    assert [protobuf_messages.rows_from_proto(each, read) for each in message.memory] == memory


def test_a_plain_step_takes_few_bytes() -> None:
    writer = protobuf_messages.VerdictFrames()
    writer.frame_of(Verdict(1, 300, 0x01020304, (7,)))
    frame = writer.frame_of(Verdict(1, 301, 0x05060708, (49151,), step_ms=12.34))
    assert frame.SerializeToString().hex() == snapshot("12082203ffff0248d209")
    rows = [Memory(301, 1, Codec.INT4, b"", Plane.MEMORY, 0x01020304)]
    with_rows = writer.frame_of(Verdict(1, 302, 0x05060708, (49151,)), rows).verdict
    assert with_rows.memory[0] == pb.Memory(codec=pb.CODEC_INT4, prefix_hash=0x01020304)


def test_a_node_that_follows_takes_few_bytes() -> None:
    writer = protobuf_messages.DraftFrames()
    writer.write_draft(Draft(3, 300, 0x01020304, 0, (7,)))
    frame = pb.ClientFrame(draft=writer.write_draft(Draft(3, 300, 0, 1, (49151,))))
    assert frame.SerializeToString().hex() == snapshot("1a052a03ffff02")


def test_a_frame_that_continues_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Expected a Draft that names its base, as the first one after an Open or"):
        protobuf_messages.DraftFrames().read_draft(pb.Draft(tokens=[1]))
    with pytest.raises(ProtocolError, match="Expected a verdict that names its base, as the first one of a stream,"):
        protobuf_messages.VerdictFrames().read_verdict(pb.Verdict(tokens=[1]))


def test_nodes_may_be_numbered_beyond_what_a_frame_can_name() -> None:
    """A hostile first number must not overflow when it is continued."""
    reader = protobuf_messages.DraftFrames()
    reader.read_draft(pb.Draft(base=1, first_node=(1 << 32) - 1, tokens=[1, 2], parents=[1, 1]))
    assert reader.read_draft(pb.Draft(tokens=[3], parents=[1])) == Draft(0, 1, 0, (1 << 32) + 1, (3,), (1 << 32,))
