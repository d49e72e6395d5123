"""Which refused calls are logged."""

from __future__ import annotations

from moa_server.service.admission import MINUTE, MOST_KINDS, MOST_LINES, OTHERS, RefusalLog


def test_a_few_of_a_kind_are_logged_and_the_rest_counted() -> None:
    refusals = RefusalLog()
    logged = sum(refusals.is_worth_a_line("rate_limit", "key alice", 0.01 * each) for each in range(2000))
    assert logged == MOST_LINES
    assert refusals.is_worth_a_line("rate_limit", "key bob", 20.0)
    assert refusals.is_worth_a_line("mismatch", "key alice", 20.0)
    assert refusals.take_left_out(MINUTE - 1.0) == []
    assert refusals.take_left_out(MINUTE) == [{"code": "rate_limit", "owner": "key alice", "count": 2000 - MOST_LINES}]
    assert refusals.take_left_out(2 * MINUTE) == []
    assert refusals.is_worth_a_line("rate_limit", "key alice", 2 * MINUTE)


def test_a_flood_from_many_addresses_is_bounded_too() -> None:
    refusals = RefusalLog()
    logged = sum(refusals.is_worth_a_line("authentication", f"ipv4:{each}", 0.0) for each in range(10_000))
    assert logged == MOST_KINDS + MOST_LINES
    assert refusals.take_left_out(MINUTE) == [{"code": "authentication", "owner": OTHERS, "count": 10_000 - logged}]
