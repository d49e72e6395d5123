"""What calls cost, which are let in, and which refusals have a line in the log."""

import pytest
from moa_server.access.keys import Gate, KeyBook, KeyEntry, hash_of
from moa_server.access.limits import MINUTE, Bucket, Right
from moa_server.service import admission
from moa_server.service.admission import (
    BURST_US,
    CALL_US,
    FRAME_US,
    MOST_LINES,
    SHARE_US,
    TOGETHER_US,
    Admission,
    RefusalLog,
    address_times,
    frame_cost,
    pause_seconds,
)
from moa_server.service.service import certificate_name
from moa_server.settings import ServerSettings
from moa_shared.errors import ForbiddenError

from tests.support.counted import Clock

KEY = "moa_" + "k" * 40
PEER = "ipv4:10.0.0.1:4000"


def allowance(clock: Clock, times: float = 1.0) -> Bucket:
    return Bucket(clock, times * SHARE_US, times * BURST_US)


def test_an_address_begins_twice_as_many_calls_as_it_may_make() -> None:
    clock = Clock()
    calls, begun = allowance(clock, address_times(30_000)), 0
    while clock.now < 100.0:
        calls.take(CALL_US)
        begun += 1
        clock.now += pause_seconds(calls)
    assert begun == pytest.approx(2 * 500 * (100 + MINUTE * BURST_US / SHARE_US), rel=0.01)
    assert address_times(1) == admission.ADDRESS_TIMES
    any_number = allowance(clock, address_times(0))
    any_number.take(1e12)
    assert pause_seconds(any_number) == 0.0


def test_after_a_pause_several_frames_are_handled_together_and_rest_is_not_saved_up() -> None:
    clock = Clock(1e6)
    frames = allowance(clock)
    frames.take(frame_cost(0, int(2 * BURST_US)))
    assert pause_seconds(frames) == pytest.approx(MINUTE * (BURST_US + FRAME_US + TOGETHER_US) / SHARE_US)
    clock.now += pause_seconds(frames)
    for _ in range(int(TOGETHER_US / FRAME_US)):
        assert pause_seconds(frames) == pytest.approx(0.0)
        frames.take(frame_cost(0, 0))


def test_an_honest_client_is_never_held_back() -> None:
    """Two hundred drafts of eight nodes, fifty credits and twenty beats a second, after an Open of 131,072 tokens."""
    clock = Clock()
    frames = allowance(clock)
    frames.take(CALL_US + frame_cost(3 * 131_072, 0))
    for draft in range(10_000):
        frames.take(frame_cost(80, 8))
        if draft % 4 == 0:
            frames.take(frame_cost(10, 0))
        if draft % 10 == 0:
            frames.take(frame_cost(10, 0, replies=True))
        clock.now += 0.005
        assert pause_seconds(frames) == 0.0


async def test_a_key_is_let_in_by_its_rights() -> None:
    book = KeyBook.of([KeyEntry("laptop", hash_of(KEY), frozenset({Right.GENERATE}))])
    entrance = Admission(ServerSettings(), Gate(fixed=book), Clock())
    sent = [("authorization", f"Bearer {KEY}")]
    assert (await entrance.admit(sent, PEER, "", Right.GENERATE)).key == "laptop"
    assert (await entrance.admit(sent, PEER, "", None)).key == "laptop"
    with pytest.raises(ForbiddenError, match="The key laptop has no right to converse"):
        await entrance.admit(sent, PEER, "", Right.CONVERSE)


def test_a_few_of_a_kind_are_logged_and_the_rest_counted() -> None:
    refusals = RefusalLog()
    assert sum(refusals.is_worth_a_line("rate_limit", "key alice", 0.0) for _ in range(2000)) == MOST_LINES
    assert refusals.is_worth_a_line("rate_limit", "key bob", 20.0)
    assert refusals.is_worth_a_line("mismatch", "key alice", 20.0)
    assert refusals.take_left_out(MINUTE - 1.0) == []
    assert refusals.take_left_out(MINUTE) == [{"code": "rate_limit", "owner": "key alice", "count": 2000 - MOST_LINES}]
    assert refusals.take_left_out(2 * MINUTE) == []
    assert refusals.is_worth_a_line("rate_limit", "key alice", 0.0)


def test_a_flood_from_many_addresses_is_bounded_too() -> None:
    refusals = RefusalLog()
    logged = sum(refusals.is_worth_a_line("authentication", f"ipv4:{each}", 0.0) for each in range(10_000))
    assert logged == admission.MOST_KINDS + MOST_LINES
    assert refusals.take_left_out(MINUTE) == [
        {"code": "authentication", "owner": admission.OTHERS, "count": 10_000 - logged}
    ]


def test_the_name_in_a_certificate() -> None:
    common, other = "x509_common_name", "x509_subject_alternative_name"
    assert certificate_name({}) == certificate_name({"transport_security_type": [b"ssl"]}) == ""
    assert certificate_name({common: [b"alice"], other: [b"a.example"]}) == "alice"
    assert certificate_name({common: [b""], other: [b"a.example", b"b.example"]}) == "a.example"
    assert certificate_name({common: ["Zoë\n".encode()]}) == "Zoë"
