"""Token buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.access.limits import MINUTE, MOST_KEPT, Bucket, Buckets


def test_it_begins_full_and_holds_a_minutes_worth() -> None:
    bucket = Bucket(600, now=0.0)
    assert bucket.left(1000.0) == 600.0
    bucket.take(600, 1000.0)
    assert bucket.left(1000.0) == 0.0
    assert bucket.left(1001.0) == pytest.approx(10.0)
    assert bucket.left(2000.0) == 600.0


def test_it_says_when_there_is_enough() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(100, 0.0)
    assert bucket.seconds_until(1, 0.0) == pytest.approx(41.0)
    assert bucket.seconds_until(1, 30.0) == pytest.approx(11.0)
    assert bucket.seconds_until(1, 50.0) == 0.0


def test_more_than_it_holds_is_waited_for_until_it_is_full() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(30, 0.0)
    assert bucket.seconds_until(1e9, 0.0) == pytest.approx(30.0)


def test_a_new_rate_changes_what_flows_in_and_not_what_is_owed() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(90, 0.0)
    bucket.set_rate(600, 0.0)
    assert bucket.left(0.0) == -30.0
    assert bucket.left(3.0) == pytest.approx(0.0)
    bucket.set_rate(6, MINUTE)
    assert bucket.left(MINUTE) == 6.0


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 500.0))))
def test_no_more_is_taken_than_a_minutes_worth_and_what_flows_in(taken: list[tuple[float, float]]) -> None:
    """Where whoever takes waits until it is there."""
    bucket, now, total = Bucket(120, 0.0), 0.0, 0.0
    for pause, amount in taken:
        now += pause
        if bucket.left(now) >= amount:
            bucket.take(amount, now)
            total += amount
        assert total <= 120 + 120 * now / MINUTE + 1e-6


def test_those_that_owe_most_are_remembered() -> None:
    buckets = Buckets()
    owing = [f"owing {number}" for number in range(10)]
    for name in owing:
        buckets.of(name, 60, 0.0).take(1000, 0.0)
    for number in range(3 * MOST_KEPT):
        buckets.of(f"stranger {number}", 60, 0.0).take(1, 0.0)
        assert len(buckets) <= MOST_KEPT
    assert [buckets.of(name, 60, 0.0).left(0.0) for name in owing] == [-940.0] * 10


def test_full_ones_are_forgotten_first() -> None:
    buckets = Buckets()
    for number in range(MOST_KEPT):
        buckets.of(str(number), 60, 0.0)
    buckets.of("one more", 60, 0.0)
    assert len(buckets) == 1
