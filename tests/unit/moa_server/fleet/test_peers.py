"""A fleet as an operator writes it."""

from __future__ import annotations

import pytest
from moa_server.fleet.peers import Peers, parse_advertised, parse_peers


def test_a_list_or_a_name() -> None:
    assert parse_peers("") == Peers()
    assert parse_peers(" a:1, [::1]:2,a:1 ") == Peers(("a:1", "[::1]:2"))
    named = parse_peers("dns:moa.svc:50051")
    assert named == Peers(name="moa.svc:50051")
    assert named.host == "moa.svc"
    assert named.at(["10.0.0.1", "fd00::1"]) == ("10.0.0.1:50051", "[fd00::1]:50051")


@pytest.mark.parametrize("text", ["a", "a:1,b", "a:1,", "dns:", "dns:a", "dns:a:1,b:2", "a:1,dns:b:2", "http://a:1"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT|is not dns:NAME:PORT|stands alone"):
        parse_peers(text)


def test_an_advertised_address_is_one() -> None:
    assert parse_advertised("") == ""
    assert parse_advertised("[::1]:5") == "[::1]:5"
    with pytest.raises(ValueError, match="'a' is not HOST:PORT"):
        parse_advertised("a")
