"""Spans by OpenTelemetry, which only a program that traces imports (the extra `tracing`).

Where they go, what they are called and how many are sampled is said by OpenTelemetry's own variables:
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and the like.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from moa_shared.errors import ConfigError
from moa_shared.programs.missing_packages import install_extra
from moa_shared.text.plain_text import plain_line
from moa_shared.tracing.spans import TRACEPARENT, Span, Tracer, Value, use_tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as RecordedSpan

PREFIX = "moa."  # of attributes
CLOSE_SECONDS = 2.0  # for handing over what is recorded, when the program ends


@contextmanager
def traced(mode: Literal["off", "otlp"], program: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Traces this program, if that is wanted, and hands over what it has recorded in the end.

    Args:
        program: its name in traces, unless OTEL_SERVICE_NAME says otherwise.
        tell: logs a sentence.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if mode == "off":
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "Traces need the packages of OpenTelemetry, which are not installed.",
            hint=f"Install them: {install_extra('tracing')}.",
        ) from None
    name = os.environ.get("OTEL_SERVICE_NAME", program)
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False)
    # A queue of its own and a thread: a collector that is away costs nothing but the spans.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = TelemetryTracer(provider)
    before = use_tracer(tracer)
    complaints = logging.getLogger("opentelemetry")
    complaints.addHandler(FirstComplaint(tell))
    complaints.propagate = False
    try:
        yield
    finally:
        use_tracer(before)
        # It keeps trying where no collector listens; the program must not wait for that.
        closing = threading.Thread(target=tracer.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class FirstComplaint(logging.Handler):
    """Tells once that spans do not arrive, in place of OpenTelemetry's own lines for each attempt."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._has_told = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell(f"Traces cannot be handed over: {plain_line(record.getMessage())[:200]}")


class TelemetryTracer(Tracer):
    """Makes spans of OpenTelemetry."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("moa")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, parent: str, at_ns: int | None, values: dict[str, Value]) -> Span:
        from opentelemetry.context import Context

        above = self._propagator.extract({TRACEPARENT: parent}, Context()) if parent else Context()
        return TelemetrySpan(self._tracer.start_span(name, above, attributes=_named(values), start_time=at_ns))

    def close(self) -> None:
        self._provider.shutdown()


class TelemetrySpan(Span):
    """A span of OpenTelemetry."""

    def __init__(self, span: RecordedSpan) -> None:
        self._span = span
        context = span.get_span_context()
        self._traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        self._has_ended = False

    @property
    def traceparent(self) -> str:
        return self._traceparent

    def note(self, **values: Value) -> None:
        self._span.set_attributes(_named(values))

    def mark(self, name: str, **values: Value) -> None:
        self._span.add_event(name, _named(values))

    def end(self, *, at_ns: int | None = None, problem: str = "") -> None:
        if self._has_ended:
            return
        from opentelemetry.trace import Status, StatusCode

        self._has_ended = True
        if problem:
            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end(at_ns)


def _named(values: dict[str, Value]) -> dict[str, Value]:
    return {PREFIX + name: value for name, value in values.items()}
