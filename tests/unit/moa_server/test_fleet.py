"""A server that finds out who else belongs to its fleet; what the service manager is told, and the command that connects."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from moa_server import addresses
from moa_server import fleet as watch
from moa_server.addresses import parse_advertised, parse_peers, reachable_address
from moa_server.app import tell_manager
from moa_server.fleet import FleetWatch, Membership, is_own
from moa_shared.programs.addresses import MOST_SUCCESSORS


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


@pytest.mark.parametrize(
    ("address", "own", "expected"),
    [
        ("127.0.0.1:7", "127.0.0.1:7", True),
        ("127.0.0.2:7", "127.0.0.1:7", False),  # it listens on one address
        ("127.0.0.1:7", "0.0.0.0:7", True),  # on all of this machine
        ("127.0.0.1:8", "0.0.0.0:7", False),  # another server of the same machine
        ("198.51.100.1:7", "0.0.0.0:7", False),
        ("gpu.example:7", "[::]:7", False),
    ],
)
def test_which_address_is_one_s_own(address: str, own: str, expected: bool) -> None:
    assert is_own(address, own) is expected


@pytest.mark.parametrize("servers", [4, 100])
def test_clients_that_leave_together_are_sent_to_different_replicas_of_which_each_learns_some(servers: int) -> None:
    fleet = Membership(f"10.0.0.{number}:1" for number in range(servers))
    told = [fleet.names() for _ in range(servers)]
    most = min(servers, MOST_SUCCESSORS)
    assert {names[0] for names in told} == set(fleet.others)
    assert {len(names) for names in told} == {most}
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
