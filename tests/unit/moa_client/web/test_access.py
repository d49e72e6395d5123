"""Who may send requests: by user, Host, Origin and key."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from moa_client.web import access as access_module
from moa_client.web.access import Access, find_user, read_key, user_of
from moa_client.web.error_form import RequestError
from moa_client.web.server import make_app
from moa_shared.errors import ConfigError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.messages import says

KEY = "0123456789abcdef.-"
APP = "https://app.example"
OURS = Access("127.0.0.1", 8674)
EVERYWHERE = Access("0.0.0.0", 8674, key=KEY)
ALLOWING = Access("127.0.0.1", 8674, (APP,))
WITH_KEY = Access("127.0.0.1", 8674, key=KEY)


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
        assert f"The header Host is {host!r}" in str(caught.value) or not host


@pytest.mark.parametrize("origin", ["http://localhost:8674", "http://LOCALHOST:8674", APP, f"{APP}:443"])
def test_own_pages_and_allowed_ones_may_send(origin: str) -> None:
    ALLOWING.check_origin(origin, "localhost:8674")
    if "app" in origin:
        Access("127.0.0.1", 8674, (f"{APP}:443",)).check_origin(origin, "app.example")
        with says(RequestError, "Another site's page has sent this request: conversations are for moa's own page."):
            ALLOWING.check_origin(origin, "localhost:8674", "/moa/v1/conversations")


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "null",
            "",
            "http://localhost:3000",
            "https://localhost:8674",
            "http://127.0.0.1:8674",
            "https://evil.example",
        ),
        *("http://app.example", "https://app.example:8443", "https://app.example.evil", "http://["),
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    for host in ("localhost:8674", "app.example", "app.example:443"):
        with pytest.raises(RequestError, match="may not use this device") as caught:
            ALLOWING.check_origin(origin, host)
        assert caught.value.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer 0123456789abcdef.-"},
        {"authorization": "bearer  0123456789abcdef.-"},
        {"sec-websocket-protocol": "moa, moa.key.0123456789abcdef.-"},
        {"x-api-key": "0123456789abcdef.-"},
        {"x-api-key": "0123456789abcdef.-", "authorization": "Bearer another service's"},
        {"x-api-key": "another service's", "authorization": "Bearer 0123456789abcdef.-"},
    ],
)
def test_the_key_may_come_in_three_places(headers: dict[str, str]) -> None:
    WITH_KEY.check_key(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer 0123456789abcdef"},
        {"authorization": "Bearer s\u00e9ize"},
        {"authorization": "Basic 0123456789abcdef.-"},
        {"x-api-key": "0123456789abcdef"},
        {"sec-websocket-protocol": "moa"},
        {"sec-websocket-protocol": "0123456789abcdef.-"},
    ],
)
def test_without_the_key_nobody_enters(headers: dict[str, str]) -> None:
    with pytest.raises(RequestError) as caught:
        WITH_KEY.check_key(headers)
    assert caught.value.status == 401
    OURS.check_key(headers)
    assert KEY not in repr(WITH_KEY)


@pytest.mark.parametrize(("user", "words"), [(os.getuid() + 4242, "Another user"), (None, "The system does not say")])
def test_only_the_daemons_own_user_and_root_may_enter_without_a_key(user: int | None, words: str) -> None:
    for own in (0, os.getuid()):
        OURS.check_user(own)
    WITH_KEY.check_user(user)
    with pytest.raises(RequestError, match=words) as refused:
        OURS.check_user(user)
    assert refused.value.status == 403


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   1: {} {:02X} 00000000:00000000 00:00000000 00000000  {}        0 {} 1 0 20 4 30 10 -1\n"
ENDS = "0100007F:C001 0100007F:21E2"
SIX = ENDS.replace("0100007F", "00000000000000000000000001000000")
MAPPED = ENDS.replace("0100007F", "0000000000000000FFFF00000100007F")
linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net")


@pytest.mark.parametrize(
    ("name", "host", "row", "user"),
    [
        ("tcp", "127.0.0.1", (ENDS, 1, 8, 1), 8),
        ("tcp6", "::1", (SIX, 1, 9, 1), 9),
        ("tcp6", "127.0.0.1", (MAPPED, 1, 10, 1), 10),
        ("tcp", "127.0.0.1", ("0100007F:21E2 0100007F:C001", 1, 7, 1), None),  # our own end
        ("tcp", "127.0.0.1", (ENDS, 5, 11, 1), 11),  # it has sent all, and still reads
        ("tcp", "127.0.0.1", (ENDS, 5, 0, 0), None),  # it was closed: the kernel says root
        ("tcp", "127.0.0.1", (ENDS, 6, 0, 0), None),
    ],
)
def test_the_tables_have_the_user_of_the_clients_end(
    tmp_path: Path, name: str, host: str, row: tuple[str, int, int, int], user: int | None
) -> None:
    ends = (host, 0xC001), (host, 8674)
    assert find_user(*ends, tmp_path) is None  # a system that has no tables
    (tmp_path / name).write_text(HEAD + ROW.format(*row))
    assert find_user(*ends, tmp_path) == user


@pytest.mark.parametrize(("found", "user"), [(1000, 1000), (0, 0), (None, None), (65534, None)])
def test_who_has_left_or_has_no_number_here_cannot_be_told(
    found: int | None, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "find_user", lambda client, server: found)
    monkeypatch.setattr(access_module, "EVERY_USER", [])
    address = ("127.0.0.1", 8674)
    ends = Mock(getpeername=Mock(return_value=address), getsockname=Mock(return_value=address))
    assert user_of(ends) == user
    ends.getpeername.side_effect = [address, OSError("Transport endpoint is not connected")]
    assert user_of(ends) is None


@contextmanager
def ends_of(host: str, to: str = "") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the second one was accepted."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.socket(socket.AF_INET6 if ":" in (to or host) else socket.AF_INET)
        with client:
            client.connect((to or host, listener.getsockname()[1]))
            accepted, _ = listener.accept()
            with accepted:
                yield client, accepted


@linux
@pytest.mark.parametrize(("host", "to"), [("127.0.0.1", ""), ("::1", ""), ("127.0.0.1", "::ffff:127.0.0.1")])
def test_of_a_real_connection_it_is_this_process(host: str, to: str) -> None:
    if ":" in host + to and not Path("/proc/net/if_inet6").exists():
        return  # there is no IPv6 here
    with ends_of(host, to) as (client, accepted):
        assert user_of(accepted) == os.getuid()
        client.shutdown(socket.SHUT_WR)
        assert user_of(accepted) == os.getuid()


@linux
@pytest.mark.parametrize("linger", [b"", struct.pack("ii", 1, 0)])
def test_who_has_left_cannot_be_told(linger: bytes) -> None:
    with ends_of("127.0.0.1") as (client, accepted):
        if linger:  # closing resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
        assert user_of(accepted) is None


async def show(request: Request) -> Response:
    return JSONResponse({"path": request.url.path})


async def fail(request: Request) -> Response:
    raise ZeroDivisionError


def client(*, origins: tuple[str, ...] = (), key: str = "") -> httpx.AsyncClient:
    routes = [Route(path, show) for path in ("/", "/page/a.js", "/v1/models")]
    app = make_app([*routes, Route("/fail", fail)], Access("127.0.0.1", 8674, origins, key))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8674")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/models//", "//"])
async def test_a_request_of_this_device_enters_and_a_slash_at_the_end_is_the_same_path(path: str) -> None:
    response = await client().get(path)
    assert (response.status_code, response.json()) == (200, {"path": path.rstrip("/") or "/"})
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
async def test_a_foreign_name_or_page_does_not_and_learns_nothing(headers: dict[str, str]) -> None:
    response = await client(origins=(APP,)).get("/v1/models", headers=headers)
    assert (response.status_code, error_of(response)["type"]) == (403, "permission_error")
    asking = {**headers, "access-control-request-method": "GET"}
    asked = await client(origins=(APP,)).options("/v1/models", headers=asking)
    assert asked.status_code in (400, 403)
    assert not [each for each in (response, asked) if "access-control-allow-origin" in each.headers]


async def test_an_allowed_page_may_ask_what_it_may_send_and_read_the_answer() -> None:
    headers = {
        "origin": APP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "access-control-request-private-network": "true",
    }
    asked = await client(origins=(APP,), key=KEY).options("/v1/models", headers=headers)
    assert asked.status_code == 200
    assert {name: value for name, value in asked.headers.items() if name.startswith("access")} == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization,content-type",
        "access-control-max-age": "600",
        "access-control-allow-private-network": "true",
    }
    response = await client(origins=(APP,)).get("/v1/models", headers={"origin": APP})
    told = ("access-control-allow-origin", "access-control-expose-headers", "vary")
    assert [response.headers[each] for each in told] == [APP, "retry-after", "Origin"]
    refused = await client(origins=(APP,), key=KEY).get("/v1/models", headers={"origin": APP})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, APP)


async def test_the_key_is_needed_for_all_but_the_pages_files() -> None:
    with_key = client(key=KEY)
    for path in ("/", "/page/a.js"):
        assert (await with_key.get(path)).status_code == 200
    for path in ("/v1/models", "/moa/v1/conversations"):  # whether there is such a path is nobody's business
        refused = await with_key.get(path)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (error_of(refused)["code"], error_of(refused)["type"]) == ("invalid_api_key", "authentication_error")
    assert (await with_key.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 200


async def test_what_is_not_there_and_what_fails_reads_as_other_errors_do(caplog: pytest.LogCaptureFixture) -> None:
    for method, path, status, words in (
        ("GET", "/v1/files", 404, "There is nothing at /v1/files. What there is: /v1/models."),
        ("GET", "/v1/", 404, "There is nothing at /v1. What there is: /v1/models."),
        ("GET", "/files", 404, "There is nothing at /files."),
        ("PUT", "/v1/models", 405, "PUT /v1/models: Method Not Allowed."),
        ("GET", "/fail", 500, "This is a defect of moa: please report it with the log."),
    ):
        response = await client().request(method, path)
        assert (response.status_code, error_of(response)["message"]) == (status, words)
    assert "a request to /fail has failed" in caplog.text


def test_the_file_counts_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    assert read_key(path, {"MOA_ENDPOINT_KEY": "another-one-0123456789"}) == KEY
    assert read_key(None, {"MOA_ENDPOINT_KEY": KEY}) == KEY
    assert read_key(None, {}) == ""


@pytest.mark.parametrize("text", ["short", "", f"{KEY};", f'"{KEY}"', f"{KEY}=", f"{KEY},"])
def test_what_could_not_be_sent_or_guessed_is_refused(text: str) -> None:
    with says(ConfigError, "MOA_ENDPOINT_KEY has no key of at least 16 letters, digits and ._~+-"):
        read_key(None, {"MOA_ENDPOINT_KEY": text})
