"""The address by which other machines reach this one."""

from __future__ import annotations

import socket

import pytest
from moa_server.running import addresses
from moa_server.running.addresses import reachable_address


def test_an_address_that_somebody_has_chosen_stays() -> None:
    assert reachable_address("203.0.113.9") == "203.0.113.9"
    assert reachable_address("127.0.0.2") == "127.0.0.2"  # one of several nodes on this machine


def test_for_loopback_it_is_that_of_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ELSEWHERE", ((socket.AF_INET, "127.0.0.9"),))
    assert reachable_address("::1") == "127.0.0.1"
    monkeypatch.setattr(addresses, "ELSEWHERE", ())
    assert reachable_address("::1") == "::1"
