"""What a key may hold at once over several replicas: answers count everywhere, and what is idle gives way."""

from __future__ import annotations

from moa_server.access.holdings import HOLDINGS_SECONDS, KeyUsage, OtherReplicasUsage, sum_holdings
from moa_server.cluster.holding_rule import HoldingBook, RemoteUsage

NAME = ("sessions", "alice")
LIMIT = 3


def held(running: int, idle: int = 0) -> dict[tuple[str, str], KeyUsage]:
    return {NAME: KeyUsage(LIMIT, running, idle)}


def test_a_replica_learns_what_answers_hold_at_all_others() -> None:
    book = HoldingBook()
    book.settle("r0", held(1), 0.0)
    book.settle("r1", held(2), 0.1)
    assert book.settle("r2", {}, 0.2) == {NAME: RemoteUsage(elsewhere=3, excess=0)}
    assert book.settle("r0", held(1), 1.0) == {NAME: RemoteUsage(elsewhere=2, excess=0)}


def test_who_holds_nothing_any_more_counts_no_more() -> None:
    book = HoldingBook()
    book.settle("r0", held(3), 0.0)
    book.settle("r0", {}, 1.0)
    assert book.settle("r1", {}, 1.1) == {}


def test_what_is_idle_gives_way_where_it_was_used_longest_ago() -> None:
    book = HoldingBook()
    book.settle("r0", held(0, 2), 0.0)
    book.settle("r1", held(0, 1), 0.5)
    assert book.settle("r1", held(1, 1), 1.0) == {}  # one too many, and r0 is to give it up
    assert book.settle("r0", held(0, 2), 1.1) == {NAME: RemoteUsage(elsewhere=1, excess=1)}
    assert book.settle("r1", held(1, 1), 1.5) == {}


def test_nobody_is_told_to_give_up_what_another_one_gives_up_already() -> None:
    book = HoldingBook()
    for second, replica in enumerate(("r0", "r1")):
        book.settle(replica, held(0, 2), float(second))
    rests = [book.settle(replica, held(0, 2), 2.0 + second) for second, replica in enumerate(("r0", "r1"))]
    assert rests == [{NAME: RemoteUsage(elsewhere=0, excess=1)}, {}]


def test_answers_are_not_cut_where_two_replicas_let_in_too_many_at_once() -> None:
    book = HoldingBook()
    book.settle("r0", held(LIMIT), 0.0)
    assert book.settle("r1", held(LIMIT), 0.1) == {NAME: RemoteUsage(elsewhere=LIMIT, excess=0)}


def test_a_silent_replica_and_one_that_has_left_hold_nothing() -> None:
    book = HoldingBook()
    book.settle("r0", held(3), 0.0)
    book.settle("r1", held(1), 1.0)
    book.leave("r1")
    assert book.settle("r2", {}, 2.0) == {NAME: RemoteUsage(elsewhere=3, excess=0)}
    assert book.settle("r2", {}, HOLDINGS_SECONDS) == {}


def test_what_was_told_too_long_ago_keeps_nobody_out() -> None:
    now = 10.0
    elsewhere = OtherReplicasUsage(lambda: now)
    assert elsewhere.running("alice") == 0
    elsewhere.tell({"alice": 2})
    now = 10.0 + HOLDINGS_SECONDS - 0.1
    assert (elsewhere.running("alice"), elsewhere.running("bob")) == (2, 0)
    now = 10.0 + HOLDINGS_SECONDS
    assert elsewhere.running("alice") == 0


def test_only_those_with_a_limit_are_counted() -> None:
    each = [("alice", 3, 1, True), ("alice", 3, 1, False), ("bob", 0, 1, False)]
    assert sum_holdings(each) == {"alice": KeyUsage(3, running=1, idle=1)}
