"""The metrics as Prometheus reads them, and as the operations page explains them."""

from __future__ import annotations

from moa_server.observing.exposition import MoaCollector, ServerFacts, make_registry
from moa_server.observing.metrics import Metrics
from moa_server.observing.readings import Readings
from prometheus_client.metrics_core import Metric

from tests.support.programs import CHECKOUT

FACTS = ServerFacts({"version": "1", "model": "tiny", "level": "int8", "drafters": "default"}, 2.0)


def collector() -> MoaCollector:
    return MoaCollector(
        Metrics(), lambda: Readings(expires_at=1.0, dropped={"default": False}), lambda: FACTS, lambda: True
    )


def row(family: Metric) -> str:
    """Of the page's table."""
    names = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"| `{name}` | {', '.join(f'`{label}`' for label in names)} | {family.documentation} |"


def test_the_page_explains_every_metric() -> None:
    page = (CHECKOUT / "docs/operations.md").read_text("utf-8").splitlines()
    assert [line for line in page if line.startswith("| `moa_")] == [row(family) for family in collector().collect()]


def test_names_follow_the_conventions() -> None:
    for family in collector().collect():
        assert family.name.startswith("moa_")
        assert not family.name.endswith(("_ms", "_total", "_count", "_kb"))
        assert family.documentation.endswith(".")


def test_before_there_is_a_server_it_is_not_ready() -> None:
    loading = MoaCollector(Metrics(), lambda: None, lambda: None, lambda: False)
    registry = make_registry(loading)
    assert registry.get_sample_value("moa_ready") == 0
    assert registry.get_sample_value("moa_tokens_written_total") == 0
    assert registry.get_sample_value("moa_kv_budget_bytes") is None
    assert registry.get_sample_value("process_cpu_seconds_total") is not None
