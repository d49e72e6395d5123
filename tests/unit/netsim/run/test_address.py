"""Addresses as users write them."""

from __future__ import annotations

import socket

import pytest
from netsim.errors import AddressError
from netsim.run.address import Address, listen, parse_address, resolve


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":6000", Address("127.0.0.1", 6000)),
        ("localhost:1", Address("localhost", 1)),
        ("[::1]:50051", Address("::1", 50051)),
        ("10.0.0.1:0", Address("10.0.0.1", 0)),
    ],
)
def test_forms(text: str, address: Address) -> None:
    assert parse_address(text, "--listen") == address


@pytest.mark.parametrize(
    "text", ["6000", "host", "host:", "host:port", "host:70000", "host:-1", "::1", "fe80::1:50051"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match=r"--listen: .* is not an address"):
        parse_address(text, "--listen")


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"


def test_a_port_in_use_is_said() -> None:
    with listen(Address("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"Port {port} is in use on 127.0.0.1") as caught:
            listen(Address("127.0.0.1", port))
        assert "--listen" in str(caught.value.hint)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(AddressError, match=r"Cannot listen on 192\.0\.2\.1:1"):
        listen(Address("192.0.2.1", 1))


def test_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(AddressError, match=r"host 'nowhere\.invalid' is not known"):
        resolve(Address("nowhere.invalid", 1), "upstream")
