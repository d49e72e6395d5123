"""A fleet: who belongs to it, who is named to whom, and what a key may take over all replicas; and the service manager."""

import asyncio
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from moa_server import addresses
from moa_server import fleet as watch
from moa_server.addresses import parse_advertised, parse_peers, reachable_address
from moa_server.app import tell_manager
from moa_server.cluster.rules import LOAD, SILENT_SECONDS, Coordinator, QuotaBook, Report, SharedBuckets, State, policy
from moa_server.fleet import FleetWatch, Membership, is_own
from moa_shared.errors import MismatchError
from moa_shared.programs.addresses import MOST_SUCCESSORS

from tests.support.counted import Clock


async def test_a_name_is_looked_up_again_and_what_was_known_stays_while_it_has_no_address() -> None:
    """One's own address is left out."""
    answers = [
        ["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2", "10.0.0.3"], ["10.0.0.3", "10.0.0.2"], [], [], ["10.0.0.4"]
    ]  # fmt: skip
    look_up = AsyncMock(side_effect=answers)
    fleet = Membership()
    watching = FleetWatch(fleet, parse_peers("dns:moa.svc:7"), "10.0.0.1:7", look_up)
    seen = []
    for _ in answers:
        await watching.look()
        seen.append(fleet.others)
    assert seen == [("10.0.0.2:7",), *[("10.0.0.2:7", "10.0.0.3:7")] * 4, ("10.0.0.4:7",)]
    assert {call.args[0] for call in look_up.await_args_list} == {"moa.svc"}


async def test_it_goes_on_looking_after_a_failure_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AGAIN_SECONDS", 0.0)
    fleet, failure = Membership(), RuntimeError("can't start new thread")
    look_up = AsyncMock(side_effect=[failure, failure, ["10.0.0.2"], asyncio.CancelledError])
    with pytest.raises(asyncio.CancelledError):
        await FleetWatch(fleet, parse_peers("dns:moa.svc:7"), "h:7", look_up).run()
    assert list(fleet.others) == ["10.0.0.2:7"]
    await FleetWatch(fleet, parse_peers("a:1,b:1,c:1"), "b:1", look_up).run()  # a list needs no look-up
    assert list(fleet.others) == ["a:1", "c:1"]
    assert look_up.await_count == 4


@pytest.mark.parametrize(("address", "own", "expected"), [
    ("127.0.0.1:7", "127.0.0.1:7", True),
    ("127.0.0.2:7", "127.0.0.1:7", False),  # it listens on one address
    ("127.0.0.1:7", "0.0.0.0:7", True),  # on all of this machine
    ("127.0.0.1:8", "0.0.0.0:7", False),  # another server of the same machine
    ("198.51.100.1:7", "0.0.0.0:7", False),
    ("gpu.example:7", "[::]:7", False),
])  # fmt: skip
def test_which_address_is_one_s_own(address: str, own: str, expected: bool) -> None:
    assert is_own(address, own) is expected


@pytest.mark.parametrize("servers", [4, 100])
def test_clients_that_leave_together_are_sent_to_different_replicas_of_which_each_learns_some(servers: int) -> None:
    fleet = Membership(f"10.0.0.{number}:1" for number in range(servers))
    told = [fleet.names() for _ in range(servers)]
    most = min(servers, MOST_SUCCESSORS)
    assert ({names[0] for names in told}, {len(names) for names in told}) == (set(fleet.others), {most})
    assert set(Counter(address for names in told for address in names).values()) == {most}


@pytest.mark.parametrize("text", ["a", "a:1,b", "a:1,", "dns:", "dns:a", "dns:a:1,b:2", "a:1,dns:b:2", "http://a:1"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT|is not dns:NAME:PORT|stands alone"):
        parse_peers(text)
    assert parse_advertised("[::1]:5") == "[::1]:5"
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_advertised(text)


@pytest.mark.parametrize("name", ["notify", "@moa-test-notify"])
def test_a_manager_is_told_and_one_that_does_not_read_or_is_not_there_holds_nothing_up(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(60)
        for environment in ({"NOTIFY_SOCKET": name}, {"NOTIFY_SOCKET": "nobody"}, {}):
            for _ in range(2000):  # more than a socket keeps
                tell_manager("READY=1\nSTATUS=serving", environment)
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving"


def test_a_reachable_address_is_the_one_chosen_and_for_loopback_that_of_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reachable_address("203.0.113.9") == "203.0.113.9"
    assert reachable_address("127.0.0.2") == "127.0.0.2"  # one of several nodes on this machine
    monkeypatch.setattr(addresses, "ELSEWHERE", ((socket.AF_INET, "127.0.0.9"),))
    assert reachable_address("::1") == "127.0.0.1"
    monkeypatch.setattr(addresses, "ELSEWHERE", ())
    assert reachable_address("::1") == "::1"


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
