"""What a key may take and hold over several replicas: as one server would allow it, with and without the book."""

from __future__ import annotations

import pytest
from moa_server.access.limits import HOLDINGS_SECONDS, KeyUsage, OtherReplicasUsage, sum_holdings
from moa_server.cluster.quotas import LEASE_SECONDS, QuotaBook, RemoteUsage, SharedBuckets

LIMIT = 600  # a minute
NAME = ("tokens", "alice")


class Replicas:
    """Some that tell a book once a second, and a caller that takes at all of them what it may."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.book: QuotaBook | None = QuotaBook()
        self.buckets = [SharedBuckets(lambda: count) for _ in range(count)]
        self.took = [0.0] * count

    def second(self, *eager: int) -> None:
        """A second in which a caller takes all that these replicas let it have."""
        for number in eager:
            bucket = self.buckets[number].of("alice", LIMIT, self.now)
            while bucket.left(self.now) >= 1.0:
                bucket.take(1.0, self.now)
                self.took[number] += 1.0
        if self.book is not None:
            for number, buckets in enumerate(self.buckets):
                taken = {("tokens", owner): each for owner, each in buckets.taken().items()}
                leases = self.book.leases(f"r{number}", taken, self.now)
                buckets.lease({owner: lease for (_, owner), lease in leases.items()}, self.now)
        self.now += 1.0


@pytest.mark.parametrize("eager", [(0,), (0, 1), (0, 1, 2)])
def test_in_the_long_run_all_replicas_let_through_what_one_would(eager: tuple[int, ...]) -> None:
    replicas = Replicas(3)
    for _ in range(600):
        replicas.second(*eager)
    assert sum(replicas.took) == pytest.approx(10 * LIMIT + LIMIT, rel=0.05)  # ten minutes, and a full bucket at first


def test_a_caller_that_moves_leaves_its_debt_nowhere() -> None:
    replicas = Replicas(2)
    for number in range(120):
        replicas.second(number % 2)
    assert sum(replicas.took) == pytest.approx(3 * LIMIT, rel=0.1)


def test_without_the_book_each_lets_an_even_share_through() -> None:
    replicas = Replicas(3)
    for _ in range(30):
        replicas.second(0)
    replicas.book = None
    for _ in range(int(LEASE_SECONDS) + 1):
        replicas.second()
    replicas.second(0)
    replicas.took = [0.0] * 3
    for _ in range(60):
        replicas.second(0, 1, 2)
    # The two that had no caller before begin with their even share.
    assert sum(replicas.took) == pytest.approx(LIMIT + 2 * LIMIT / 3, rel=0.05)
    assert replicas.took[0] == pytest.approx(LIMIT / 3, rel=0.05)


# ---------------------------------------------------------------- what it holds

HELD = ("sessions", "alice")
MOST = 3


def held(running: int, idle: int = 0) -> dict[tuple[str, str], KeyUsage]:
    return {HELD: KeyUsage(MOST, running, idle)}


def test_what_is_idle_gives_way_where_it_was_used_longest_ago() -> None:
    book = QuotaBook()
    book.rests("r0", held(0, 2), 0.0)
    book.rests("r1", held(0, 1), 0.5)
    assert book.rests("r1", held(1, 1), 1.0) == {}  # one too many, and r0 is to give it up
    assert book.rests("r0", held(0, 2), 1.1) == {HELD: RemoteUsage(elsewhere=1, excess=1)}
    assert book.rests("r1", held(1, 1), 1.5) == {}


def test_nobody_is_told_to_give_up_what_another_one_gives_up_already() -> None:
    book = QuotaBook()
    for second, replica in enumerate(("r0", "r1")):
        book.rests(replica, held(0, 2), float(second))
    rests = [book.rests(replica, held(0, 2), 2.0 + second) for second, replica in enumerate(("r0", "r1"))]
    assert rests == [{HELD: RemoteUsage(elsewhere=0, excess=1)}, {}]


def test_a_silent_replica_and_one_that_has_left_hold_nothing() -> None:
    book = QuotaBook()
    book.rests("r0", held(3), 0.0)
    book.rests("r1", held(1), 1.0)
    book.leave("r1")
    assert book.rests("r2", {}, 2.0) == {HELD: RemoteUsage(elsewhere=3, excess=0)}
    assert book.rests("r2", {}, HOLDINGS_SECONDS) == {}


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
