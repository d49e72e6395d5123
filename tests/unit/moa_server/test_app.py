"""What the service manager is told, and the command that connects."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from moa_server import addresses
from moa_server.addresses import reachable_address
from moa_server.app import VARIABLE, ServiceManager


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        yield listening


def test_it_says_what_systemd_understands(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    server = ServiceManager({VARIABLE: str(tmp_path / "notify")})
    server.ready("serving tiny on 127.0.0.1:1")
    server.alive()
    server.stopping()
    told = [manager.recv(1000) for _ in range(3)]
    assert told == [b"READY=1\nSTATUS=serving tiny on 127.0.0.1:1", b"WATCHDOG=1", b"STOPPING=1\nSTATUS=draining"]


def test_an_address_without_a_file(manager: socket.socket) -> None:
    manager.bind("\0moa-test-notify")
    ServiceManager({VARIABLE: "@moa-test-notify"}).alive()
    assert manager.recv(1000) == b"WATCHDOG=1"


def test_a_manager_that_does_not_read_or_is_not_there_holds_nothing_up(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    for environment in ({VARIABLE: str(tmp_path / "notify")}, {VARIABLE: str(tmp_path / "nobody")}, {}):
        server = ServiceManager(environment)
        for _ in range(2000):  # more than a socket keeps
            server.alive()


def test_an_address_that_somebody_has_chosen_stays() -> None:
    assert reachable_address("203.0.113.9") == "203.0.113.9"
    assert reachable_address("127.0.0.2") == "127.0.0.2"  # one of several nodes on this machine


def test_for_loopback_it_is_that_of_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ELSEWHERE", ((socket.AF_INET, "127.0.0.9"),))
    assert reachable_address("::1") == "127.0.0.1"
    monkeypatch.setattr(addresses, "ELSEWHERE", ())
    assert reachable_address("::1") == "::1"
