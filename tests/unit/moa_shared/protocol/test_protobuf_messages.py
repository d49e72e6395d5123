"""Messages to protobuf and back: nothing is lost, and what a version does not know is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Draft, Memory, Plane, Verdict
from moa_shared.protocol.prefix_hash import SHORT_HASH
from moa_shared.protocol.protobuf_messages import (
    ask_from_proto,
    ask_to_proto,
    draft_from_proto,
    draft_to_proto,
    memory_from_proto,
    memory_to_proto,
    settings_from_proto,
    settings_to_proto,
    verdict_from_proto,
    verdict_to_proto,
)
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
    *(COUNTS, COUNTS, SHORT_HASHES, TOKENS, st.sampled_from(Finish)),
    *(COUNTS, COUNTS, COUNTS, st.integers(0, 10**7).map(lambda hundredths: hundredths / 100)),
    *(COUNTS, COUNTS, st.integers(0, 100).map(lambda percent: percent / 100)),
)
MEMORIES = st.builds(
    Memory, COUNTS, COUNTS, st.sampled_from(Codec), st.binary(max_size=20), st.sampled_from(Plane), COUNTS
)


@given(DRAFTS)
def test_a_draft_comes_back(draft: Draft) -> None:
    assert draft_from_proto(pb.Draft.FromString(draft_to_proto(draft).SerializeToString())) == draft


@given(ASKS)
def test_a_question_comes_back(ask: Ask) -> None:
    assert ask_from_proto(pb.Ask.FromString(ask_to_proto(ask).SerializeToString())) == ask


@given(VERDICTS)
def test_a_verdict_comes_back(verdict: Verdict) -> None:
    assert verdict_from_proto(pb.Verdict.FromString(verdict_to_proto(verdict).SerializeToString())) == verdict


@given(MEMORIES)
def test_memory_comes_back(memory: Memory) -> None:
    assert memory_from_proto(pb.Memory.FromString(memory_to_proto(memory).SerializeToString())) == memory


def test_settings_that_are_left_out_are_off() -> None:
    assert settings_from_proto(pb.Sampling()) == AnswerSettings()
    assert settings_to_proto(AnswerSettings()) == pb.Sampling(top_p=1.0)


def test_a_question_needs_a_number() -> None:
    with pytest.raises(ProtocolError, match="an Ask with an id of 1 or more, got none"):
        ask_from_proto(pb.Ask(tokens=[1]))


def test_numbers_of_a_later_version_are_refused() -> None:
    with pytest.raises(ProtocolError, match="a finish that this version knows, got 99"):
        verdict_from_proto(pb.Verdict.FromString(b"\x30\x63"))  # finish = 99
    with pytest.raises(ProtocolError, match="a codec that this version knows, got codec 99"):
        memory_from_proto(pb.Memory.FromString(b"\x18\x63"))
    with pytest.raises(ProtocolError, match="memory of plane 0 or 1, got plane 99"):
        memory_from_proto(pb.Memory.FromString(b"\x18\x01\x28\x63"))


@pytest.mark.parametrize(
    ("chances", "message"),
    [
        ([pb.TokenChances(chosen=math.nan)], "chances that are numbers, got others"),
        ([pb.TokenChances(chosen=-1.0, tokens=[1], chances=[-math.inf])], "chances that are numbers, got others"),
        ([pb.TokenChances(chosen=-1.0, tokens=[1])], "chances of 1 likeliest tokens, got 0"),
        ([pb.TokenChances(chosen=-1.0)] * 2, "chances of 1 tokens, got of 2"),
    ],
)
def test_chances_that_are_none_are_refused(chances: list[pb.TokenChances], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        verdict_from_proto(pb.Verdict(ask=1, base=1, tokens=[3], chances=chances))
