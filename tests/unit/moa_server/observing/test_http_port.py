"""The port for operators, and callers that mean it no good."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from inline_snapshot import snapshot
from moa_server.observing.http_port import MOST_CONNECTIONS, MOST_HEAD_BYTES, HttpPage, HttpPort
from moa_shared.errors import ConfigError

from tests.support.messages import raises


def fail() -> HttpPage:
    raise ValueError("a defect")


PAGES: dict[str, Callable[[], HttpPage]] = {
    "/good": lambda: HttpPage(200, b"well\n"),
    "/bad": lambda: HttpPage(503, b"not well\n"),
    "/defect": fail,
}


@pytest.fixture
def port() -> Iterator[int]:
    port = HttpPort("127.0.0.1", 0, PAGES, ("gpu1.example.com",))
    yield port.port
    port.stop()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def send(port: int, data: bytes) -> str:
    """The first line of what comes back, or of a connection that ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        return connection.makefile("rb").readline().decode().strip()


def test_pages(port: int) -> None:
    assert get(port, "/good") == (200, "well\n")
    assert get(port, "/good?verbose=1") == (200, "well\n")
    assert get(port, "/bad") == (503, "not well\n")
    assert get(port, "/other") == snapshot((404, "Pages: /good, /bad, /defect\n"))
    assert get(port, "/defect") == snapshot((500, "The page failed; the server's log says why.\n"))


def test_what_is_no_request_of_ours(port: int) -> None:
    assert send(port, b"HEAD /good HTTP/1.1\r\n\r\n") == "HTTP/1.1 200 OK"
    assert send(port, b"POST /good HTTP/1.1\r\n\r\n") == "HTTP/1.1 405 Method Not Allowed"
    assert send(port, b"\x16\x03\x01 hello\r\n\r\n") == "HTTP/1.1 400 Bad Request"
    assert send(port, b"GET /good HTTP/1.1\r\nX: " + b"x" * MOST_HEAD_BYTES) == (
        "HTTP/1.1 431 Request Header Fields Too Large"
    )
    assert get(port, "/good") == (200, "well\n")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", "403 Forbidden"),
        ("evil.example:9464", "403 Forbidden"),
        ("127.0.0.1.evil.example", "403 Forbidden"),
        ("[bad", "403 Forbidden"),
        ("10.1.2.3:9464", "200 OK"),
        ("[fd00::1]:9464", "200 OK"),
        ("localhost:9464", "200 OK"),
        ("server:9464", "200 OK"),  # of a compose file
        ("moa-metrics.default.svc.cluster.local", "200 OK"),
        ("GPU1.example.com:9464", "200 OK"),
        ("", "200 OK"),
    ],
)
def test_a_site_that_points_its_name_here_reads_nothing(port: int, host: str, status: str) -> None:
    assert send(port, f"GET /good HTTP/1.1\r\nX: y\r\nhost: {host}\r\n\r\n".encode()) == f"HTTP/1.1 {status}"


def test_callers_that_say_nothing_keep_nobody_out(port: int) -> None:
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(2 * MOST_CONNECTIONS)
        ]
        assert get(port, "/good") == (200, "well\n")
        assert held[0].recv(1) == b""  # the oldest gave way


def test_a_slow_caller_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moa_server.observing.http_port.CONNECTION_SECONDS", 0.05)
    port = HttpPort("127.0.0.1", 0, PAGES)
    try:
        with socket.create_connection(("127.0.0.1", port.port), timeout=20) as connection:
            connection.sendall(b"GET /good")
            assert connection.recv(1) == b""
    finally:
        port.stop()


def test_a_port_in_use_is_refused_in_words(port: int) -> None:
    with raises(
        ConfigError,
        snapshot(
            "Cannot listen on 127.0.0.1:PORT for metrics: it is in use, or no address of this machine. Choose another --metrics-host or --metrics-port."
        ),
    ):
        HttpPort("127.0.0.1", port, PAGES)
