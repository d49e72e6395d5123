"""What operators see: health, and the metrics as the operations page explains them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from moa_server.observing import GAUGES, Metrics, Observing
from moa_server.service.host import Host
from moa_shared.errors import ConfigError

from tests.support.programs import CHECKOUT

LOADS, DRAINS = "the model is being loaded", "draining: running answers end, no new ones begin"
SILENT, STUCK = "the event loop has not turned for N s", "a forward has been stuck for N s"


@pytest.fixture
def observing() -> Iterator[Observing]:
    """What is seen while a model is loaded."""
    observing = Observing(Metrics(), "127.0.0.1", 0, 30.0)
    yield observing
    observing.stop()


def page(observing: Observing, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{observing.port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


@pytest.mark.parametrize(
    ("changes", "startup", "ready", "alive"),
    [
        (None, LOADS, LOADS, ""),
        ({}, "", "", ""),
        ({"draining": True}, "", DRAINS, ""),
        ({"silent": 31.0}, "", SILENT, SILENT),
        ({"stuck_seconds": 40.0}, "", STUCK, STUCK),
    ],
)
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


def test_a_port_in_use_is_refused_in_words(observing: Observing) -> None:
    with pytest.raises(ConfigError, match="Choose another --metrics-host or --metrics-port"):
        Observing(Metrics(), "127.0.0.1", observing.port, 30.0)
