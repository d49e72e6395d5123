"""Waits between attempts."""

from __future__ import annotations

import random
from collections import Counter

from moa_client.link.connection import MOST_SECONDS, Backoff


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


def test_500_clients_that_lose_a_server_at_once_do_not_come_back_at_once() -> None:
    """In virtual time: the server is away for 5 s, then takes in 256 and tells the others to come in 2 s."""
    clients = [Backoff(random.Random(seed)) for seed in range(500)]
    dials: Counter[int] = Counter()  # by tenths of a second
    due = sorted((client.next_seconds(), number) for number, client in enumerate(clients))
    taken_in: list[int] = []
    while due:
        now, number = due.pop(0)
        dials[int(10 * now)] += 1
        if now >= 7.0 or (now >= 5.0 and len(taken_in) < 256):
            taken_in.append(number)
            continue
        if now >= 5.0:
            clients[number].not_before(2.0)
        due.append((now + clients[number].next_seconds(), number))
        due.sort()
    assert sorted(taken_in) == list(range(500))
    assert max(count for tenth, count in dials.items() if tenth >= 10) < 100
    assert sum(dials.values()) < 10 * 500
