"""Whom a server names to its clients."""

from __future__ import annotations

from collections import Counter

from moa_server.fleet.watch import Membership
from moa_shared.programs.addresses import MOST_SUCCESSORS


def test_clients_that_leave_together_are_sent_to_different_replicas() -> None:
    fleet = Membership([f"10.0.0.{number}:1" for number in range(4)])
    told = [fleet.names() for _ in range(16)]
    assert set(Counter(names[0] for names in told).values()) == {4}
    assert all(sorted(names) == sorted(fleet.others) for names in told)


def test_a_client_is_told_of_no_more_than_it_looks_at_and_a_large_fleet_is_named_in_turn() -> None:
    fleet = Membership(f"10.0.0.{number}:1" for number in range(100))
    told = [fleet.names() for _ in range(100)]
    assert {len(names) for names in told} == {MOST_SUCCESSORS}
    assert set(Counter(address for names in told for address in names).values()) == {MOST_SUCCESSORS}


def test_a_ranked_fleet_keeps_its_order() -> None:
    fleet = Membership()
    assert fleet.names() == ()
    fleet.update(["b:1", "a:1", "b:1", "no address"], ranked=True)
    assert [fleet.names() for _ in range(2)] == [("b:1", "a:1")] * 2


def test_a_fleet_that_shrinks() -> None:
    fleet = Membership(["a:1", "b:1", "c:1"])
    for _ in range(2):
        fleet.names()
    fleet.update(["a:1"])
    assert fleet.names() == ("a:1",)
