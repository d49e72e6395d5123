"""A fleet: who is named to whom, forgotten and refused; what a key may take over all replicas; how many a load wants."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from moa_server.cluster.rules import (
    LOAD,
    QUEUE,
    SILENT_SECONDS,
    Coordinator,
    QuotaBook,
    Report,
    Serving,
    SharedBuckets,
    State,
    policy,
    wanted_replicas,
)
from moa_shared.errors import MismatchError

from tests.support.counted import Clock


def report(number: int, **changes: Any) -> Report:
    serving = Serving("tiny", "ab", "int8")
    return replace(Report(f"r{number}", f"10.0.0.{number}:50051", serving), **changes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Coordinator:
    return Coordinator(clock)


def test_the_others_that_serve_are_named_with_the_least_load_first(fleet: Coordinator) -> None:
    for number, load in ((2, 0.9), (3, 0.1)):
        fleet.beat(report(number, load=load), {})
    fleet.beat(report(4, state=State.DRAINS), {})
    fleet.beat(report(5, state=State.HANGS), {})
    assert fleet.beat(report(1), {}).others == ("10.0.0.3:50051", "10.0.0.2:50051")
    assert len(fleet.reports()) == 5


def test_who_is_silent_has_left_or_lost_its_port_is_forgotten(fleet: Coordinator, clock: Clock) -> None:
    fleet.beat(report(1), {})
    clock.now = SILENT_SECONDS / 2
    for number in (2, 3, 4):
        fleet.beat(report(number), {})
    fleet.leave("r3")
    fleet.beat(report(5, address="10.0.0.4:50051"), {})
    clock.now = SILENT_SECONDS
    assert [each.replica for each in fleet.reports()] == ["r2", "r5"]


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        (Serving("other", "cd", "int8"), "This replica serves other, its fleet tiny."),
        (Serving("tiny", "cd", "int8"), "This replica serves tiny, its fleet other weights of it."),
        (Serving("tiny", "ab", "bf16"), "This replica computes in bf16, its fleet in int8."),
    ],
)
def test_a_replica_that_serves_something_else_is_refused_by_name(
    fleet: Coordinator, serving: Serving, message: str
) -> None:
    fleet.beat(report(1), {})
    with pytest.raises(MismatchError) as refused:
        fleet.beat(report(2, serving=serving), {})
    hint = "Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name."
    assert str(refused.value) == f"{message} {hint}"
    assert fleet.beat(report(1), {}).others == ()


def test_facts_are_what_json_can_hold() -> None:
    facts = json.loads(json.dumps(report(1, load=0.5).facts()))
    named = {"replica": "r1", "address": "10.0.0.1:50051", "state": "serves", "model": "tiny", "execution": "int8"}
    numbers = {"load": 0.5, "kv_used": 0.0, "queue_seconds": 0.0, "sessions": 0, "answering": 0, "process": 0}
    assert facts == {**named, **numbers, "node": ""}


# ---------------------------------------------------------------- what a caller may take in a minute

LIMIT = 600  # a minute


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
                buckets.lease(self.book.leases(f"r{number}", buckets.taken(), self.now), self.now)
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


@pytest.mark.parametrize(
    ("loads", "queue_seconds", "running", "wanted"),
    [
        ([0.0], 0.0, 1, 1),
        ([0.7], 0.0, 1, 1),
        ([0.71], 0.0, 1, 2),
        ([1.0, 1.0], 0.0, 2, 3),
        ([0.1, 0.0], 0.0, 2, 1),
        ([0.3, 0.3], 0.0, 2, 2),  # one would have 0.6: under the target, but too near to it
        ([0.2], 1.5, 1, 2),  # a queue asks for one more, whatever the load
        ([0.9], 0.0, 2, 2),  # the new one has recorded nothing yet
        ([], 0.0, 3, 3),  # nobody has
    ],
)
def test_wanted(loads: list[float], queue_seconds: float, running: int, wanted: int) -> None:
    assert wanted_replicas(loads, queue_seconds, running) == wanted


def test_the_number_does_not_swing_when_a_load_stays() -> None:
    for tenths in range(100):
        total, running = tenths / 10, 1
        seen = []
        for _ in range(20):
            running = wanted_replicas([min(1.0, total / running)] * running, 0.0, running)
            seen.append(running)
        assert len(set(seen[-5:])) == 1, total


def test_serve_asks_with_what_replicas_have_recorded() -> None:
    recorded = {LOAD: {"a": 0.9, "b": 0.9}, QUEUE: {"a": 0.0, "b": 0.2}}
    assert policy(SimpleNamespace(aggregated_metrics=recorded, current_num_replicas=2)) == (3, {})
    assert policy(SimpleNamespace(aggregated_metrics=None, current_num_replicas=2)) == (2, {})
