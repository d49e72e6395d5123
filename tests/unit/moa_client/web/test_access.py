"""Who may send requests: by user, Host, Origin and key."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from moa_client.web.access import Access, RequestError, find_user, read_key, user_of
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


def refused(check: Callable[[], None]) -> str:
    with pytest.raises(RequestError) as caught:
        check()
    assert caught.value.status in (401, 403)
    return f"{caught.value.status} {caught.value}"


@pytest.mark.parametrize(("access", "hosts", "others"), [
    (OURS, "localhost:8674 127.0.0.1:8674 [::1]:8674 LOCALHOST:8674", "localhost localhost:80 evil.example:8674"),
    (OURS, "", "localhost.evil.example:8674 [::1 192.168.1.9:8674"),
    (Access("127.0.0.1", 80), "localhost", "evil.example"),
    (EVERYWHERE, "192.168.1.9:8674 [fe80::1]:8674", "192.168.1.9:80 name.example:8674"),
    (Access("192.168.1.9", 8674), "192.168.1.9:8674", "192.168.1.8:8674"),
    (Access("fe80::1", 8674), "[fe80::1]:8674", "[fe80::2]:8674"),
    (ALLOWING, "app.example app.example:443", "app.example:80"),  # as a proxy sends it
])  # fmt: skip
def test_names_of_this_device_and_of_allowed_origins_may_be_the_host(access: Access, hosts: str, others: str) -> None:
    for host in hosts.split():
        access.check_host(host)
    for host in others.split():
        assert f"403 The header Host is {host!r}, which is no name of this" in refused(partial(access.check_host, host))
    assert "The header Host is missing" in refused(partial(access.check_host, ""))


def test_own_pages_and_allowed_ones_may_send_and_no_others() -> None:
    for origin in ("http://localhost:8674", "http://LOCALHOST:8674", APP, f"{APP}:443"):
        ALLOWING.check_origin(origin, "localhost:8674")
    for origin in (APP, f"{APP}:443"):
        Access("127.0.0.1", 8674, (f"{APP}:443",)).check_origin(origin, "app.example")
        other = partial(ALLOWING.check_origin, origin, "localhost:8674", "/moa/v1/conversations")
        assert "conversations are for moa's own page" in refused(other)
    strange = "null http://localhost:3000 https://localhost:8674 http://127.0.0.1:8674 https://evil.example http://["
    strange += " http://app.example https://app.example:8443 https://app.example.evil"
    for origin in (*strange.split(), ""):
        for host in ("localhost:8674", "app.example", "app.example:443"):
            assert "may not use this device" in refused(partial(ALLOWING.check_origin, origin, host))


@pytest.mark.parametrize(("headers", "enters"), [
    ({"authorization": f"Bearer {KEY}"}, True), ({"authorization": f"bearer  {KEY}"}, True),
    ({"sec-websocket-protocol": f"moa, moa.key.{KEY}"}, True), ({"x-api-key": KEY}, True),
    ({"x-api-key": KEY, "authorization": "Bearer another service's"}, True),
    ({"x-api-key": "another service's", "authorization": f"Bearer {KEY}"}, True), ({}, False),
    ({"authorization": "Bearer"}, False), ({"authorization": f"Bearer {KEY[:-2]}"}, False),
    ({"authorization": "Bearer s\u00e9ize"}, False), ({"authorization": f"Basic {KEY}"}, False),
    ({"x-api-key": KEY[:-2]}, False), ({"sec-websocket-protocol": "moa"}, False),
    ({"sec-websocket-protocol": KEY}, False),
])  # fmt: skip
def test_the_key_may_come_in_three_places(headers: dict[str, str], enters: bool) -> None:
    OURS.check_key(headers)
    if enters:
        WITH_KEY.check_key(headers)
    else:
        assert refused(partial(WITH_KEY.check_key, headers)).startswith("401 The key is ")
    assert KEY not in repr(WITH_KEY)


@pytest.mark.parametrize(("user", "words"), [(os.getuid() + 4242, "Another user"), (None, "The system does not say")])
def test_only_the_daemons_own_user_and_root_may_enter_without_a_key(user: int | None, words: str) -> None:
    for own in (0, os.getuid()):
        OURS.check_user(own)
    WITH_KEY.check_user(user)
    assert f"403 {words}" in refused(partial(OURS.check_user, user))


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   1: {} {:02X} 00000000:00000000 00:00000000 00000000  {}        0 {} 1 0 20 4 30 10 -1\n"
ENDS = "0100007F:C001 0100007F:21E2"
SIX = ENDS.replace("0100007F", "00000000000000000000000001000000")
MAPPED = ENDS.replace("0100007F", "0000000000000000FFFF00000100007F")
linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net")


@pytest.mark.parametrize(("name", "host", "row", "user"), [
    ("tcp", "127.0.0.1", (ENDS, 1, 8, 1), 8),
    ("tcp6", "::1", (SIX, 1, 9, 1), 9),
    ("tcp6", "127.0.0.1", (MAPPED, 1, 10, 1), 10),
    ("tcp", "127.0.0.1", ("0100007F:21E2 0100007F:C001", 1, 7, 1), None),  # our own end
    ("tcp", "127.0.0.1", (ENDS, 5, 11, 1), 11),  # it has sent all, and still reads
    ("tcp", "127.0.0.1", (ENDS, 5, 0, 0), None),  # it was closed: the kernel says root
    ("tcp", "127.0.0.1", (ENDS, 6, 0, 0), None),
])  # fmt: skip
def test_the_tables_have_the_user_of_the_clients_end(
    tmp_path: Path, name: str, host: str, row: tuple[str, int, int, int], user: int | None
) -> None:
    ends = (host, 0xC001), (host, 8674)
    assert find_user(*ends, tmp_path) is None  # a system that has no tables
    (tmp_path / name).write_text(HEAD + ROW.format(*row))
    assert find_user(*ends, tmp_path) == user


@contextmanager
def ends_of(host: str, to: str = "") -> Iterator[tuple[socket.socket, socket.socket]]:
    families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in (host, to or host)]
    with socket.create_server((host, 0), family=families[0]) as listener, socket.socket(families[1]) as client:
        client.connect((to or host, listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            yield client, accepted


@linux
@pytest.mark.parametrize(("host", "to"), [("127.0.0.1", ""), ("::1", ""), ("127.0.0.1", "::ffff:127.0.0.1")])
@pytest.mark.parametrize("linger", [b"", struct.pack("ii", 1, 0)])
def test_of_a_real_connection_it_is_this_process_until_it_has_left(host: str, to: str, linger: bytes) -> None:
    if ":" in host + to and not Path("/proc/net/if_inet6").exists():
        return  # there is no IPv6 here
    with ends_of(host, to) as (client, accepted):
        assert user_of(accepted) == os.getuid()
        client.shutdown(socket.SHUT_WR)
        assert user_of(accepted) == os.getuid()
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
        "access-control-allow-origin": APP, "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization,content-type", "access-control-max-age": "600",
        "access-control-allow-private-network": "true",
    }  # fmt: skip
    response = await client(origins=(APP,)).get("/v1/models", headers={"origin": APP})
    told = ("access-control-allow-origin", "access-control-expose-headers", "vary")
    assert [response.headers[each] for each in told] == [APP, "retry-after", "Origin"]
    refused = await client(origins=(APP,), key=KEY).get("/v1/models", headers={"origin": APP})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, APP)
    other = await client(origins=(APP,)).get("/v1/models", headers={"origin": "https://elsewhere.example"})
    assert other.status_code == 403


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
    assert (read_key(None, {"MOA_ENDPOINT_KEY": KEY}), read_key(None, {})) == (KEY, "")


@pytest.mark.parametrize("text", ["short", "", f"{KEY};", f'"{KEY}"', f"{KEY}=", f"{KEY},"])
def test_what_could_not_be_sent_or_guessed_is_refused(text: str) -> None:
    with says(ConfigError, "MOA_ENDPOINT_KEY has no key of at least 16 letters, digits and ._~+-"):
        read_key(None, {"MOA_ENDPOINT_KEY": text})
