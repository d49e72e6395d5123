"""Traces of answers, from the user's question to the last verdict; nothing is traced unless a program asks for it.

Only a program that traces imports OpenTelemetry (the extra `tracing`), whose own variables say where spans go and how
many are sampled (OTEL_EXPORTER_OTLP_ENDPOINT and the like). State: the program's tracer, set once at its start.
Contexts cross the wire as W3C `traceparent`. Spans hold numbers and names, never text of a conversation.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from moa_shared.errors import ConfigError
from moa_shared.plain_text import plain_line
from moa_shared.programs.entry import install_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as RecordedSpan

Value = str | int | float | bool

TRACEPARENT = "traceparent"  # of a call's metadata, and of HTTP requests
# Version, trace, span and flags in hexadecimal, none of them void.
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_provider: TracerProvider | None = None


class Span:
    """A piece of work that takes time. `traceparent`: by which others hang theirs below; empty: nothing is recorded."""

    def __init__(self, recorded: RecordedSpan | None = None) -> None:
        self._recorded, self.traceparent = recorded, ""
        if recorded is not None:
            context = recorded.get_span_context()
            self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def note(self, **values: Value) -> None:
        if self._recorded is not None:
            self._recorded.set_attributes(_named(values))

    def mark(self, name: str, **values: Value) -> None:
        if self._recorded is not None:
            self._recorded.add_event(name, _named(values))

    def end(self, *, at_ns: int | None = None, problem: str = "") -> None:
        """Ends it, now or at `at_ns` as of `time.time_ns`, with the name of what went wrong; again changes nothing."""
        if self._recorded is None or not self._recorded.is_recording():
            return
        from opentelemetry.trace import Status, StatusCode

        if problem:
            self._recorded.set_status(Status(StatusCode.ERROR, problem))
        self._recorded.end(at_ns)


def use_provider(provider: TracerProvider | None) -> TracerProvider | None:
    """Records spans with `provider` from now on, or none; returns the one before."""
    global _provider
    before, _provider = _provider, provider
    return before


def is_traced() -> bool:
    return _provider is not None


def begin_span(name: str, parent: str = "", *, at_ns: int | None = None, **values: Value) -> Span:
    """A span that begins now, or at `at_ns`; a `parent` that is no traceparent is ignored."""
    if _provider is None:
        return Span()
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {TRACEPARENT: parent} if _FORM.fullmatch(parent) else {}
    above = TraceContextTextMapPropagator().extract(carrier, Context())
    return Span(_provider.get_tracer("moa").start_span(name, above, attributes=_named(values), start_time=at_ns))


@contextmanager
def traced(mode: Literal["off", "otlp"], program: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Traces this program, if that is wanted, and hands over what it has recorded in the end.

    `program`: its name in traces, unless OTEL_SERVICE_NAME says otherwise. `tell`: logs a sentence.
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
    before, complaints = use_provider(provider), logging.getLogger("opentelemetry")
    complaints.addHandler(_FirstComplaint(tell))
    complaints.propagate = False
    try:
        yield
    finally:
        use_provider(before)
        # It keeps trying where no collector listens; the program must not wait for that.
        closing = threading.Thread(target=provider.shutdown, daemon=True)
        closing.start()
        closing.join(2.0)


class _FirstComplaint(logging.Handler):
    """Tells once that spans do not arrive, in place of OpenTelemetry's own lines for each attempt."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"Traces cannot be handed over: {plain_line(record.getMessage(), 200)}")
        self.setLevel(logging.CRITICAL + 1)


def _named(values: dict[str, Value]) -> dict[str, Value]:
    return {f"moa.{name}": value for name, value in values.items()}
