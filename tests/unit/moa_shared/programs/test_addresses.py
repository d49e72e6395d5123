"""Addresses as users and peers write them."""

from __future__ import annotations

import pytest
from moa_shared.programs.addresses import is_host_port, leads_here, successors_among


@pytest.mark.parametrize(
    "text", ["a:1", "one.example:50051", "10.0.0.1:65535", "[::1]:80", "[2001:db8::1]:1", "my_host-2.local:7"]
)
def test_what_is_host_port(text: str) -> None:
    assert is_host_port(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "a:\u0661", "::1:80", "[a]:1", "[1.2.3.4]:5", "127.1:1"),
        *("0x7f.1:1", "2130706433:1", "http://a:1", "a b:1", "-a:1", "a..b:1", "a\n:1"),
        *(f"{'a' * 64}:1", f"{'a.' * 130}b:1"),
    ],
)
def test_what_is_not_host_port(text: str) -> None:
    assert not is_host_port(text)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.8.9.1", "::1", "0.0.0.0", "::"])
def test_hosts_that_lead_to_whoever_is_told(host: str) -> None:
    assert leads_here(host)
    assert not leads_here("one.example")
    assert leads_here("::ffff:127.0.0.1")


def test_of_what_a_peer_names_the_first_few_are_taken() -> None:
    named = ["a:1", "no address", "a:1", *(f"b{number}:1" for number in range(20))]
    assert successors_among(named) == ("a:1", *(f"b{number}:1" for number in range(7)))
