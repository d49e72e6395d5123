"""What operators see: health, the metrics as the operations page explains them, and the log."""

import io
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import structlog
from moa_server.logs import configure_logs
from moa_server.observing import GAUGES, MOST_CONNECTIONS, Metrics, Observing, _Handler
from moa_server.service.host import Host
from moa_shared.errors import ConfigError

from tests.support.programs import CHECKOUT
from tests.unit.moa_shared.programs.test_machine import Terminal

LOADS, DRAINS = "the model is being loaded", "draining: running answers end, no new ones begin"
SILENT, STUCK = "the event loop has not turned for N s", "a forward has been stuck for N s"


@pytest.fixture
def observing() -> Iterator[Observing]:
    """What is seen while a model is loaded."""
    observing = Observing(Metrics(), "127.0.0.1", 0, 30.0)
    yield observing
    observing.stop()


def page(observing: Observing, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    answer = httpx.get(f"http://127.0.0.1:{observing.port}{path}", headers=headers, timeout=60, trust_env=False)
    return answer.status_code, answer.text


@pytest.mark.parametrize(("changes", "startup", "ready", "alive"), [
    (None, LOADS, LOADS, ""), ({}, "", "", ""), ({"draining": True}, "", DRAINS, ""),
    ({"silent": 31.0}, "", SILENT, SILENT), ({"stuck_seconds": 40.0}, "", STUCK, STUCK),
])  # fmt: skip
def test_health(observing: Observing, changes: dict[str, Any] | None, startup: str, ready: str, alive: str) -> None:
    if changes is not None:
        lifecycle = SimpleNamespace(**{"draining": False, "stuck_seconds": 0.2, **changes})
        observing._host = cast(Host, SimpleNamespace(lifecycle=lifecycle))
        observing._last_beat = time.monotonic() - changes.get("silent", 0.0)
    for path, trouble, well in (
        ("/startupz", startup, "started"),
        ("/readyz", ready, "ready"),
        ("/livez", alive, "alive"),
    ):
        status, words = page(observing, path)
        assert (status, re.sub(r"\d+", "N", words)) == (503 if trouble else 200, f"{trouble or well}\n")


def rows(observing: Observing) -> set[str]:
    """Of the page's table."""
    found = {f"| `{name}` | {f'`{label}`' if label else ''} | {text} |" for name, (text, label) in GAUGES.items()}
    for family in observing.registry.collect():
        if family.name.startswith("moa_"):
            names = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found.add(f"| `{name}` | {', '.join(f'`{label}`' for label in names)} | {family.documentation} |")
    return found


def test_the_page_explains_every_metric(observing: Observing) -> None:
    told = {
        line
        for line in (CHECKOUT / "docs/operations.md").read_text("utf-8").splitlines()
        if line.startswith("| `moa_") and not line.startswith(("| `moa_model_load", "| `moa_build_info"))
    }
    assert told == rows(observing)


def test_before_there_is_a_server_there_are_zeros(observing: Observing) -> None:
    status, text = page(observing, "/metrics")
    lines = text.splitlines()
    assert status == 200
    assert {"moa_ready 0.0", "moa_tokens_written_total 0.0"} <= set(lines)
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)
    assert not any(line.startswith("moa_kv_budget_bytes ") for line in lines)


@pytest.mark.parametrize(("status", "host"), [
    *((403, host) for host in ("evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[bad")),
    *((200, host) for host in ("10.1.2.3:9464", "[fd00::1]:9464", "localhost:9464", "GPU1.example.com:9464", "")),
    (200, "server:9464"),  # of a compose file
    (200, "moa-metrics.default.svc.cluster.local"),
])  # fmt: skip
def test_a_site_that_points_its_name_here_reads_nothing(observing: Observing, status: int, host: str) -> None:
    observing.names.add("gpu1.example.com")
    for path in ("/livez", "/metrics"):
        assert page(observing, path, {"Host": host})[0] == status


def test_callers_that_say_nothing_keep_nobody_out_and_are_ended(
    observing: Observing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        address = "127.0.0.1", observing.port
        held = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(2 * MOST_CONNECTIONS)]
        assert page(observing, "/livez") == (200, "alive\n")
        assert held[0].recv(1) == b""  # the oldest gave way
    monkeypatch.setattr(_Handler, "timeout", 0.05)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"GET /livez")
        assert connection.recv(1) == b""


def test_a_port_in_use_is_refused_in_words(observing: Observing) -> None:
    with pytest.raises(ConfigError, match="Choose another --metrics-host or --metrics-port"):
        Observing(Metrics(), "127.0.0.1", observing.port, 30.0)


@pytest.mark.parametrize(
    ("log_format", "out", "is_json"),
    [("auto", io.StringIO(), True), ("auto", Terminal(), False), ("plain", io.StringIO(), False), ("json", Terminal(), True)],
)  # fmt: skip
def test_format(log_format: Any, out: io.StringIO, is_json: bool) -> None:
    assert configure_logs(log_format, "info", out) is is_json
    structlog.get_logger().info("serving", port=5)
    text = out.getvalue()
    assert "serving" in text
    assert text.startswith("{") is is_json
    if is_json:
        assert {"event": "serving", "port": 5, "level": "info"}.items() <= json.loads(text).items()


def test_events_below_the_level_are_dropped_and_an_exception_is_one_line() -> None:
    out = io.StringIO()
    configure_logs("json", "warning", out)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("session failed", exc_info=ValueError("out of memory"))
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_value"] == "out of memory"


def test_what_a_client_wrote_is_clipped_and_harmless() -> None:
    out = Terminal()
    configure_logs("plain", "info", out)
    structlog.get_logger().info("call refused", reason="\x1b]52;c;aGk=\x07" + "n" * 900_000)
    assert len(out.getvalue()) < 1000
    assert "\x1b]52" not in out.getvalue()
    assert "(900012 characters)" in out.getvalue()


@pytest.mark.parametrize("log_format", ["plain", "json"])
def test_tracebacks_come_without_what_variables_hold(log_format: Any) -> None:
    out = io.StringIO()
    configure_logs(log_format, "info", out)
    conversation = " ".join(("the", "user's", "secret"))
    try:
        raise ValueError(f"{len(conversation)} characters")
    except ValueError:
        structlog.get_logger().exception("call failed")
    assert "17 characters" in out.getvalue()
    assert "secret" not in out.getvalue()
