"""Spans as the rest of moa sees them, without OpenTelemetry: by default they record nothing and cost nothing.

State: the program's tracer, which is set once at its start. Contexts cross the wire as W3C `traceparent`
(https://www.w3.org/TR/trace-context/). Spans hold numbers and names, never text of a conversation.
"""

from __future__ import annotations

import re
from typing import Protocol

Value = str | int | float | bool

TRACEPARENT = "traceparent"  # of a call's metadata, and of HTTP requests
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """A piece of work that takes time."""

    @property
    def traceparent(self) -> str:
        """By which others hang their spans below this one; empty: it is not recorded."""

    def note(self, **values: Value) -> None:
        """Adds facts."""

    def mark(self, name: str, **values: Value) -> None:
        """Records that something happened now."""

    def end(self, *, at_ns: int | None = None, problem: str = "") -> None:
        """Ends it; a second time changes nothing.

        Args:
            at_ns: when, as `time.time_ns`; None: now.
            problem: what went wrong, by its name; empty: nothing.
        """


class Tracer(Protocol):
    """Makes spans."""

    def begin(self, name: str, parent: str, at_ns: int | None, values: dict[str, Value]) -> Span:
        """A span that begins now, or at `at_ns`; below `parent`, a valid traceparent, or by itself."""

    def close(self) -> None:
        """Hands over what is recorded."""


class _Nothing:
    """A tracer and a span that record nothing."""

    traceparent = ""

    def note(self, **values: Value) -> None:
        pass

    def mark(self, name: str, **values: Value) -> None:
        pass

    def end(self, *, at_ns: int | None = None, problem: str = "") -> None:
        pass

    def begin(self, name: str, parent: str, at_ns: int | None, values: dict[str, Value]) -> Span:
        return self

    def close(self) -> None:
        pass


NOTHING = _Nothing()
_tracer: Tracer = NOTHING


def use_tracer(tracer: Tracer) -> Tracer:
    """Traces with `tracer` from now on; returns the one before."""
    global _tracer
    before, _tracer = _tracer, tracer
    return before


def is_traced() -> bool:
    """Whether spans are recorded."""
    return _tracer is not NOTHING


def begin_span(name: str, parent: str = "", *, at_ns: int | None = None, **values: Value) -> Span:
    """Begins a span.

    Args:
        parent: traceparent of the span that it belongs to; what is none is ignored.
        at_ns: when it began, as `time.time_ns`; None: now.
    """
    return _tracer.begin(name, parent if is_traceparent(parent) else "", at_ns, values)


def is_traceparent(text: str) -> bool:
    """Whether a text names a span: version, trace, span and flags in hexadecimal, none of them void."""
    return _FORM.fullmatch(text) is not None
