"""One limit over several replicas: as one server would allow it, with and without somebody who keeps the book."""

from __future__ import annotations

import pytest
from moa_server.cluster.quota_rule import LEASE_SECONDS, Consumption, RateLedger, SharedBuckets

LIMIT = 600  # a minute
NAME = ("tokens", "alice")


class Replicas:
    """Some that tell a book once a second, and a caller that takes at all of them what it may."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.book: RateLedger | None = RateLedger()
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
                leases = self.book.settle(f"r{number}", taken, self.now)
                buckets.lease({owner: lease for (_, owner), lease in leases.items()}, self.now)
        self.now += 1.0


@pytest.mark.parametrize("eager", [(0,), (0, 1), (0, 1, 2)])
def test_in_the_long_run_all_replicas_let_through_what_one_would(eager: tuple[int, ...]) -> None:
    replicas = Replicas(3)
    for _ in range(600):
        replicas.second(*eager)
    assert sum(replicas.took) == pytest.approx(10 * LIMIT + LIMIT, rel=0.05)  # ten minutes, and a full bucket at first


def test_a_caller_at_one_replica_gets_the_whole_limit_there() -> None:
    replicas = Replicas(3)
    for _ in range(60):
        replicas.second(0)
    before = replicas.took[0]
    for _ in range(60):
        replicas.second(0)
    assert replicas.took[0] - before == pytest.approx(LIMIT, rel=0.05)


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


def test_debt_is_owed_at_every_replica() -> None:
    book = RateLedger()
    book.settle("r0", {NAME: Consumption(LIMIT, 2.0 * LIMIT)}, 0.0)
    assert book.settle("r1", {NAME: Consumption(LIMIT, 0.0)}, 0.0)[NAME].left == -LIMIT


def test_what_was_taken_since_the_book_was_asked_is_not_given_twice() -> None:
    book, buckets = RateLedger(), SharedBuckets(lambda: 1)
    buckets.of("alice", LIMIT, 0.0).take(100.0, 0.0)
    leases = book.settle("r0", {NAME: buckets.taken()["alice"]}, 0.0)
    buckets.of("alice", LIMIT, 0.0).take(50.0, 0.0)
    buckets.lease({"alice": leases[NAME]}, 0.0)
    assert buckets.of("alice", LIMIT, 0.0).left(0.0) == LIMIT - 150.0
