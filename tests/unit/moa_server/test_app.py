"""What the service manager is told, and the command that connects."""

import socket
from pathlib import Path

import pytest
from moa_server import addresses
from moa_server.addresses import reachable_address
from moa_server.app import tell_manager


@pytest.mark.parametrize("name", ["notify", "@moa-test-notify"])
def test_a_manager_is_told_and_one_that_does_not_read_or_is_not_there_holds_nothing_up(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(5)
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
