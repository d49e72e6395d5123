from __future__ import annotations

import os

import pytest
from inline_snapshot import snapshot
from moa_client.web.access import Access
from moa_client.web.error_form import RequestError

from tests.support.messages import raises, says

OURS = Access("127.0.0.1", 8674)
APP = "https://app.example"


EVERYWHERE = Access("0.0.0.0", 8674, key="k" * 16)
ALLOWING = Access("127.0.0.1", 8674, (APP,))


@pytest.mark.parametrize(
    ("access", "hosts"),
    [
        (OURS, ["localhost:8674", "127.0.0.1:8674", "[::1]:8674", "LOCALHOST:8674"]),
        (Access("127.0.0.1", 80), ["localhost"]),
        (EVERYWHERE, ["192.168.1.9:8674", "[fe80::1]:8674"]),
        (Access("192.168.1.9", 8674), ["192.168.1.9:8674"]),
        (Access("fe80::1", 8674), ["[fe80::1]:8674"]),
        (ALLOWING, ["app.example", "app.example:443"]),  # as a proxy sends it
    ],
)
def test_names_of_this_device_and_of_allowed_origins_may_be_the_host(access: Access, hosts: list[str]) -> None:
    for host in hosts:
        access.check_host(host)


@pytest.mark.parametrize(
    ("access", "hosts"),
    [
        (OURS, ["", "localhost", "localhost:80", "evil.example:8674", "localhost.evil.example:8674", "[::1"]),
        (OURS, ["192.168.1.9:8674"]),
        (EVERYWHERE, ["192.168.1.9:80", "name.example:8674"]),
    ],
)
def test_other_names_may_not(access: Access, hosts: list[str]) -> None:
    for host in hosts:
        with pytest.raises(RequestError) as caught:
            access.check_host(host)
        assert caught.value.status == 403


def test_a_refused_host_is_named() -> None:
    with says(RequestError, "The header Host is 'evil.example:8674', which is no name of this device."):
        OURS.check_host("evil.example:8674")


@pytest.mark.parametrize("origin", ["http://localhost:8674", "http://LOCALHOST:8674", APP])
def test_own_pages_and_allowed_ones_may_send(origin: str) -> None:
    ALLOWING.check_origin(origin, "localhost:8674")


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://localhost:3000", "https://localhost:8674", "http://127.0.0.1:8674", "https://evil.example"],
)
def test_other_pages_may_not(origin: str) -> None:
    with pytest.raises(RequestError) as caught:
        ALLOWING.check_origin(origin, "localhost:8674")
    assert caught.value.status == 403


@pytest.mark.parametrize("origin", ["http://app.example", "https://app.example:8443", "https://app.example.evil"])
def test_an_allowed_origin_lets_in_no_other_scheme_or_port(origin: str) -> None:
    for host in ("app.example", "app.example:443", origin.partition("://")[2]):
        assert not ALLOWING.allows_origin(origin, host)
    assert not ALLOWING.cors_headers(origin)


def test_an_origin_may_name_its_schemes_own_port() -> None:
    for given, sent in ((APP, f"{APP}:443"), (f"{APP}:443", APP), ("http://app.example", "http://app.example:80")):
        access = Access("127.0.0.1", 8674, (given,))
        access.check_origin(sent, "app.example")
        assert access.cors_headers(sent)["access-control-allow-origin"] == sent


def test_a_refused_origin_is_named() -> None:
    with says(RequestError, "Pages of 'https://evil.example' may not use this device."):
        OURS.check_origin("https://evil.example", "localhost:8674")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sixteen-letters-"},
        {"authorization": "bearer  sixteen-letters-"},
        {"sec-websocket-protocol": "moa, moa.key.sixteen-letters-"},
        {"x-api-key": "sixteen-letters-"},
        {"x-api-key": "sixteen-letters-", "authorization": "Bearer another service's"},
        {"x-api-key": "another service's", "authorization": "Bearer sixteen-letters-"},
    ],
)
def test_the_key_may_come_in_three_places(headers: dict[str, str]) -> None:
    Access("127.0.0.1", 8674, key="sixteen-letters-").check_key(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer sixteen-letters"},
        {"authorization": "Bearer s\u00e9ize"},
        {"authorization": "Basic sixteen-letters-"},
        {"x-api-key": "sixteen-letters"},
        {"sec-websocket-protocol": "moa"},
        {"sec-websocket-protocol": "sixteen-letters-"},
    ],
)
def test_without_the_key_nobody_enters(headers: dict[str, str]) -> None:
    with pytest.raises(RequestError) as caught:
        Access("127.0.0.1", 8674, key="sixteen-letters-").check_key(headers)
    assert caught.value.status == 401


def test_without_a_key_none_is_needed() -> None:
    OURS.check_key({})


def test_the_key_is_not_shown() -> None:
    assert "sixteen" not in repr(Access("127.0.0.1", 8674, key="sixteen-letters-"))


@pytest.mark.parametrize("user", [0, os.getuid()])
def test_the_daemons_own_user_may_enter(user: int | None) -> None:
    Access("127.0.0.1", 8674).check_user(user)


def test_another_user_of_the_device_may_not() -> None:
    with pytest.raises(RequestError, match="Another user of this device") as refused:
        Access("127.0.0.1", 8674).check_user(os.getuid() + 4242)
    assert refused.value.status == 403


def test_who_cannot_be_told_may_not() -> None:
    message = snapshot(
        "The system does not say which user has connected. A key (--endpoint-key-file) would let you in."
    )
    with raises(RequestError, message):
        Access("127.0.0.1", 8674).check_user(None)
