"""Whose call it is, by the certificate that the caller has shown."""

from __future__ import annotations

import pytest
from moa_server.access.caller import Caller, anonymous, caller_without_key, certificate_name


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ({}, ""),
        ({"transport_security_type": [b"ssl"]}, ""),
        ({"x509_common_name": [b"alice"], "x509_subject_alternative_name": [b"a.example"]}, "alice"),
        ({"x509_common_name": [b""], "x509_subject_alternative_name": [b"a.example", b"b.example"]}, "a.example"),
        ({"x509_common_name": ["Zoë\n".encode()]}, "Zoë"),
    ],
)
def test_the_name_in_a_certificate(context: dict[str, list[bytes]], name: str) -> None:
    assert certificate_name(context) == name


def test_sessions_belong_to_the_certificate_wherever_it_comes_from() -> None:
    here = caller_without_key("ipv4:10.0.0.1:5", "alice")
    assert here == Caller("certificate alice", "ipv4:10.0.0.1:5", is_proven=True)
    assert caller_without_key("ipv4:10.0.0.2:9", "alice").owner == here.owner
    assert caller_without_key("ipv4:10.0.0.1:5", "") == anonymous("ipv4:10.0.0.1:5")
