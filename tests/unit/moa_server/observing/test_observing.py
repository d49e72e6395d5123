"""What operators see: health, the metrics as the operations page explains them, and callers that mean the port no good."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from moa_server.observing.http_port import MOST_CONNECTIONS, TEXT, HttpPage, HttpPort
from moa_server.observing.observing import GAUGES, Metrics, Observing, troubles
from moa_shared.errors import ConfigError

from tests.support.programs import CHECKOUT

# ---------------------------------------------------------------- health

WELL = {"started": True, "draining": False, "silent_seconds": 0.1, "stuck_seconds": 0.2, "hang_seconds": 30.0}
LOADS = "the model is being loaded"
SILENT, STUCK = "the event loop has not turned for 31 s", "a forward has been stuck for 40 s"


@pytest.mark.parametrize(
    ("changes", "startup", "ready", "alive"),
    [
        ({}, "", "", ""),
        ({"started": False, "silent_seconds": 0.0}, LOADS, LOADS, ""),
        ({"draining": True}, "", "draining: running answers end, no new ones begin", ""),
        ({"silent_seconds": 31.0}, "", SILENT, SILENT),
        ({"stuck_seconds": 40.0}, "", STUCK, STUCK),
    ],
)
def test_health(changes: dict[str, Any], startup: str, ready: str, alive: str) -> None:
    assert troubles(**{**WELL, **changes}) == {"/startupz": startup, "/readyz": ready, "/livez": alive}


# ---------------------------------------------------------------- metrics


@pytest.fixture
def loading() -> Iterator[Observing]:
    """What is seen while a model is loaded."""
    observing = Observing(Metrics(), "127.0.0.1", 0, 30.0)
    yield observing
    observing.stop()


def rows(observing: Observing) -> set[str]:
    """Of the page's table."""
    found = {f"| `{name}` | {f'`{label}`' if label else ''} | {text} |" for name, (text, label) in GAUGES.items()}
    for family in observing.registry.collect():
        if family.name.startswith("moa_"):
            names = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found.add(f"| `{name}` | {', '.join(f'`{label}`' for label in names)} | {family.documentation} |")
    return found


def test_the_page_explains_every_metric(loading: Observing) -> None:
    page = (CHECKOUT / "docs/operations.md").read_text("utf-8").splitlines()
    told = {line for line in page if line.startswith("| `moa_")}
    once_it_serves = {line for line in told if line.startswith(("| `moa_model_load", "| `moa_build_info"))}
    assert told - once_it_serves == rows(loading)


def test_before_there_is_a_server_it_is_not_ready(loading: Observing) -> None:
    value = loading.registry.get_sample_value
    assert value("moa_ready") == 0
    assert value("moa_tokens_written_total") == 0
    assert value("moa_kv_budget_bytes") is None
    assert value("process_cpu_seconds_total") is not None


# ---------------------------------------------------------------- the port


def fail() -> HttpPage:
    raise ValueError("a defect")


PAGES: dict[str, Callable[[], HttpPage]] = {
    "/good": lambda: (200, b"well\n", TEXT),
    "/bad": lambda: (503, b"not well\n", TEXT),
    "/defect": fail,
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = HttpPort("127.0.0.1", 0, PAGES, ("gpu1.example.com",))
    yield port.server_port
    port.stop()


def answer(port: int, request: bytes) -> tuple[int, str]:
    """The status and the page; 0: what comes back is no answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        head, _, page = connection.makefile("rb").read().decode().partition("\r\n\r\n")
        return int(head.split()[1]) if head.startswith("HTTP/") else 0, page


GET = b"GET /good HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET /good HTTP/1.1", (200, "well\n")),
        (b"GET /good?verbose=1 HTTP/1.1", (200, "well\n")),
        (b"GET /bad HTTP/1.1", (503, "not well\n")),
        (b"GET /other HTTP/1.1", (404, "Pages: /good, /bad, /defect\n")),
        (b"GET /defect HTTP/1.1", (500, "The page failed; the server's log says why.\n")),
        (b"HEAD /good HTTP/1.1", (200, "")),
        (b"POST /good HTTP/1.1", (405, "Only GET and HEAD are answered.\n")),
    ],
)
def test_pages(port: int, request_line: bytes, expected: tuple[int, str]) -> None:
    assert answer(port, request_line + b"\r\n\r\n") == expected


def test_what_is_no_request(port: int) -> None:
    assert answer(port, b"\x16\x03\x01 hello\r\n\r\n")[0] != 200
    assert answer(port, b"GET /" + b"x" * (1 << 16))[0] == 414
    assert answer(port, GET) == (200, "well\n")


@pytest.mark.parametrize(
    ("status", "host"),
    [
        *((403, host) for host in ("evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[bad")),
        *((200, host) for host in ("10.1.2.3:9464", "[fd00::1]:9464", "localhost:9464", "GPU1.example.com:9464", "")),
        (200, "server:9464"),  # of a compose file
        (200, "moa-metrics.default.svc.cluster.local"),
    ],
)
def test_a_site_that_points_its_name_here_reads_nothing(port: int, status: int, host: str) -> None:
    assert answer(port, f"GET /good HTTP/1.1\r\nX: y\r\nhost: {host}\r\n\r\n".encode())[0] == status


def test_callers_that_say_nothing_keep_nobody_out(port: int) -> None:
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(2 * MOST_CONNECTIONS)
        ]
        assert answer(port, GET) == (200, "well\n")
        assert held[0].recv(1) == b""  # the oldest gave way


def test_a_silent_caller_is_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moa_server.observing.http_port._Handler.timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /good")
        assert connection.recv(1) == b""


def test_a_port_in_use_is_refused_in_words(port: int) -> None:
    with pytest.raises(ConfigError, match="Choose another --metrics-host or --metrics-port"):
        HttpPort("127.0.0.1", port, PAGES)
