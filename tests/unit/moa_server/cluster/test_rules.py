"""A fleet: who is named to whom, forgotten and refused; what a key may take over all replicas; how many a load wants."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from moa_server.cluster.rules import LOAD, SILENT_SECONDS, Coordinator, QuotaBook, Report, SharedBuckets, State, policy
from moa_shared.errors import MismatchError

from tests.support.counted import Clock


def report(number: int, **changes: Any) -> Report:
    return replace(Report(f"r{number}", f"10.0.0.{number}:50051", "tiny", "ab", "int8"), **changes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Coordinator:
    return Coordinator(clock)


def test_the_others_that_serve_are_named_with_the_least_load_first(fleet: Coordinator) -> None:
    for other in ({"load": 0.9}, {"load": 0.1}, {"state": State.DRAINS}, {"state": State.HANGS}):
        fleet.beat(report(2 + len(fleet.reports()), **other), {})
    assert fleet.beat(report(1), {}).others == ("10.0.0.3:50051", "10.0.0.2:50051")


def test_who_is_silent_has_left_or_lost_its_port_is_forgotten(fleet: Coordinator, clock: Clock) -> None:
    fleet.beat(report(1), {})
    clock.now = SILENT_SECONDS / 2
    for number in (2, 3, 4):
        fleet.beat(report(number), {})
    fleet.leave("r3")
    fleet.beat(report(5, address="10.0.0.4:50051"), {})
    clock.now = SILENT_SECONDS
    assert [each.replica for each in fleet.reports()] == ["r2", "r5"]


def test_a_replica_that_serves_something_else_is_refused_by_name(fleet: Coordinator) -> None:
    fleet.beat(report(1), {})
    for serves, message in (
        ({"model": "other", "fingerprint": "cd"}, "This replica serves other, its fleet tiny."),
        ({"fingerprint": "cd"}, "This replica serves tiny, its fleet other weights of it."),
        ({"execution": "bf16"}, "This replica computes in bf16, its fleet in int8."),
    ):
        with pytest.raises(MismatchError, match=message):
            fleet.beat(report(2, **serves), {})
    assert fleet.beat(report(1), {}).others == ()


# ---------------------------------------------------------------- what a caller may take in a minute

LIMIT = 600  # a minute


class Replicas:
    """Some that tell a book once a second, and a caller that takes at all of them what it may."""

    def __init__(self, count: int) -> None:
        self.clock = Clock()
        self.book: QuotaBook | None = QuotaBook(self.clock)
        self.buckets = [SharedBuckets(self.clock, lambda: count) for _ in range(count)]
        self.took = [0.0] * count

    def second(self, *eager: int) -> None:
        """A second in which a caller takes all that these replicas let it have."""
        for number in eager:
            bucket = self.buckets[number].of("alice", LIMIT)
            while bucket.left >= 1.0:
                bucket.take(1.0)
                self.took[number] += 1.0
        if self.book is not None:
            for number, buckets in enumerate(self.buckets):
                buckets.lease(self.book.leases(f"r{number}", buckets.taken()))
        self.clock.now += 1.0


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
    for _ in range(int(SILENT_SECONDS) + 1):
        replicas.second()
    replicas.second(0)
    replicas.took = [0.0] * 3
    for _ in range(60):
        replicas.second(0, 1, 2)
    # The two that had no caller before begin with their even share.
    assert sum(replicas.took) == pytest.approx(LIMIT + 2 * LIMIT / 3, rel=0.05)
    assert replicas.took[0] == pytest.approx(LIMIT / 3, rel=0.05)


# ---------------------------------------------------------------- how many replicas


def test_how_many_replicas_serve_is_told_to_run() -> None:
    def wanted(running: int, *loads: float) -> int:
        recorded = {LOAD: dict(enumerate(loads))} if loads else None
        return policy(SimpleNamespace(aggregated_metrics=recorded, current_num_replicas=running))[0]

    assert [wanted(1, 0.0), wanted(1, 0.7), wanted(1, 0.71), wanted(2, 1.0, 1.0), wanted(2, 0.3, 0.3)] == [
        1,
        1,
        2,
        3,
        1,
    ]
    assert [wanted(2, 0.9), wanted(3)] == [2, 3]  # new ones have recorded nothing yet
