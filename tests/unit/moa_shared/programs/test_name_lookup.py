"""Addresses of a name."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from moa_shared.programs.name_lookup import look_up, one_family


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def found(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


async def test_each_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "10.0.0.2", "10.0.0.1", "10.0.0.2")
    assert await look_up("fleet.example", 5.0) == ("10.0.0.2", "10.0.0.1")


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
async def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert await look_up("nowhere.example", 5.0) == ()


async def test_a_resolver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, turns = threading.Event(), 0

    def hang(*_: Any, **__: Any) -> list[Any]:
        let_go.wait(30.0)
        return []

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    turning = asyncio.create_task(turn())
    try:
        assert await look_up("slow.example", 0.05) == ()
    finally:
        let_go.set()
        turning.cancel()
    assert turns > 1  # the loop went on meanwhile


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((), ()),
        (("10.0.0.1",), ("10.0.0.1",)),
        (("fd00::1", "10.0.0.1"), ("fd00::1",)),  # one machine with both
        (("fd00::1", "10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.2")),
        (("10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"), ("10.0.0.1", "10.0.0.2")),
        (("fd00::1", "10.0.0.1", "fd00::2"), ("fd00::1", "fd00::2")),
    ],
)
def test_of_two_versions_of_ip_one_is_taken(found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert one_family(found) == expected
