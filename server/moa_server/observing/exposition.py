"""The metrics as Prometheus knows them: names, labels and what each means. docs/operations.md has the same table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from moa_server.observing.histogram import Histogram
from moa_server.observing.metrics import ROW_LABELS, Metrics
from moa_server.observing.readings import Readings


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What does not change while a server runs.

    Args:
        build: labels of moa_build_info.
        load_seconds: that loading the model took.
    """

    build: Mapping[str, str]
    load_seconds: float


class MoaCollector(Collector):
    """Gives the metrics of one server.

    Args:
        look: at the server; None: the model is being loaded.
        facts: None: as above.
        is_ready: whether new conversations are taken.
    """

    def __init__(
        self,
        metrics: Metrics,
        look: Callable[[], Readings | None],
        facts: Callable[[], ServerFacts | None],
        is_ready: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self._look = look
        self._facts = facts
        self._is_ready = is_ready

    def describe(self) -> list[Metric]:
        return []  # registering must not look at a server

    def collect(self) -> Iterator[Metric]:
        yield _gauge("moa_ready", "1 while new conversations are taken.", self._is_ready())
        if (facts := self._facts()) is not None:
            yield _gauge("moa_model_load_seconds", "How long loading the model took.", facts.load_seconds)
            info = GaugeMetricFamily("moa_build_info", "What runs.", labels=list(facts.build))
            info.add_metric(list(facts.build.values()), 1)
            yield info
        yield from self._events()
        if (readings := self._look()) is not None:
            yield from _state(readings)

    def _events(self) -> Iterator[Metric]:
        metrics = self._metrics
        forwards = HistogramMetricFamily(
            "moa_forward_seconds", "How long forwards took, by how many rows they had.", labels=["rows"]
        )
        for rows, histogram in zip(ROW_LABELS, metrics.forwards, strict=True):
            forwards.add_metric([rows], histogram.buckets, histogram.total)
        yield forwards
        yield _histogram("moa_forward_answers", "Answers in a forward.", metrics.batch)
        yield _histogram("moa_queue_wait_seconds", "How long sessions waited for their turn.", metrics.waits)
        yield _histogram("moa_event_loop_lag_seconds", "How late the event loop came to a timer.", metrics.lag)
        yield _counter("moa_server_drafting_seconds", "Time that the server drafted.", metrics.drafting_seconds)
        yield _counter("moa_tokens_read", "Tokens of prompts that were computed.", metrics.read)
        yield _counter("moa_tokens_written", "Tokens of answers.", metrics.written)
        yield _counters("moa_drafted_nodes", "Draft nodes verified.", "origin", metrics.drafted)
        yield _counters("moa_accepted_nodes", "Draft nodes that became text.", "origin", metrics.accepted)
        yield _counter("moa_stale_nodes", "Draft nodes of devices that came too late.", metrics.stale)
        yield _counter("moa_answer_steps", "Steps of answers.", metrics.steps)
        yield _counter(
            "moa_run_ahead_steps", "Those of them that verified no draft of a device that drafts.", metrics.run_ahead
        )
        finishes = {finish.name.lower(): count for finish, count in metrics.finishes.items()}
        yield _counters("moa_answers", "Answers that have ended, by why.", "finish", finishes)
        yield _counter("moa_sessions_lost", "Sessions that an error ended.", metrics.lost)
        yield _counters("moa_calls", "Calls that have begun.", "method", metrics.calls)
        refusals = dict(metrics.refusals)
        resumes = {kind.value: count for kind, count in metrics.resumes.items()}
        yield _counters("moa_refusals", "Calls that ended with an error, by its code.", "code", refusals)
        yield _counters("moa_resumes", "Clients that came back, by what they found.", "kind", resumes)
        frames = CounterMetricFamily(
            "moa_frame_bytes", "Bytes of conversations' frames.", labels=["direction", "plane"]
        )
        for direction, counts in (("sent", metrics.sent), ("received", metrics.received)):
            for plane, count in counts.items():
                frames.add_metric([direction, plane.value], count)
        yield frames
        yield _counters("moa_log_events", "Lines of the log.", "level", metrics.log_events)


def _state(readings: Readings) -> Iterator[Metric]:
    sessions = {"answering": readings.answering, "idle": readings.idle, "detached": readings.detached}
    yield _gauges("moa_sessions", "Sessions: with a running answer, with a stream, or waiting.", "state", sessions)
    yield _gauge("moa_open_calls", "Conversations and answers whose call is open.", readings.calls)
    yield _counter("moa_connections", "Connections that made a call.", readings.connections)
    yield _gauge("moa_queue_oldest_seconds", "How long some session has waited for its turn.", readings.oldest_wait)
    yield _gauge("moa_kv_held_bytes", "Keys, values and memory rows that are held.", readings.kv_held)
    yield _gauge("moa_kv_promised_bytes", "What sessions hold or may come to hold.", readings.kv_promised)
    yield _gauge("moa_kv_running_bytes", "The part of running answers, which must stay.", readings.kv_running)
    yield _gauge("moa_kv_budget_bytes", "What all may hold together.", readings.kv_budget)
    yield _gauge("moa_keys", "API keys in force.", readings.keys)
    yield _gauge("moa_draining", "1 while the server is going away.", readings.draining)
    help_text = "1 once a drafter has guessed worse than look-up: it is not asked any more."
    yield _gauges("moa_drafter_dropped", help_text, "drafter", dict(readings.dropped))
    yield _gauge("moa_hanging", "1 while a forward is stuck for longer than --hang-seconds.", readings.hangs)
    if readings.expires_at is not None:
        help_text = "When the certificate ends."
        yield _gauge("moa_tls_certificate_expiry_timestamp_seconds", help_text, readings.expires_at)


def make_registry(collector: Collector) -> CollectorRegistry:
    """A registry with this collector and the process's own metrics."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=float(value))


def _counter(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, value=float(value))


def _histogram(name: str, help_text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, help_text, buckets=histogram.buckets, sum_value=histogram.total)


def _gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for each, value in values.items():
        family.add_metric([str(each)], value)
    return family


def _counters(name: str, help_text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for each, value in values.items():
        family.add_metric([str(each)], value)
    return family
