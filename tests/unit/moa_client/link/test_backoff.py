"""Waits between attempts."""

from __future__ import annotations

import random

from moa_client.link.backoff import AT_ONCE_SECONDS, FIRST_SECONDS, MOST_SECONDS, Backoff


def test_waits_double_to_a_limit_and_begin_again() -> None:
    backoff = Backoff(random.Random(1))
    assert backoff.next_seconds() <= AT_ONCE_SECONDS
    waits = [backoff.next_seconds() for _ in range(12)]
    for place, wait in enumerate(waits):
        ceiling = min(MOST_SECONDS, FIRST_SECONDS * 2**place)
        assert ceiling / 2 <= wait <= ceiling
    backoff.reset()
    assert backoff.next_seconds() <= AT_ONCE_SECONDS


def test_two_clients_wait_apart() -> None:
    assert Backoff(random.Random(1)).next_seconds() != Backoff(random.Random(2)).next_seconds()


def test_a_server_may_ask_for_a_longer_wait_once() -> None:
    backoff = Backoff(random.Random(1))
    waits = []
    for _ in range(20):
        backoff.not_before(7.0)
        waits.append(backoff.next_seconds())
    assert all(7.0 <= wait <= 10.5 for wait in waits)
    assert len(set(waits)) == 20
    assert backoff.next_seconds() <= MOST_SECONDS
