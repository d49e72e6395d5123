"""How a program begins and ends to trace."""

import sys

import pytest
from moa_shared.errors import ConfigError
from moa_shared.tracing import _FORM, begin_span, is_traced, traced

from tests.support.messages import says

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_nothing_is_traced_unless_wanted() -> None:
    with traced("off", "moa-test", print):
        assert not is_traced()
        assert begin_span("question", SPAN).traceparent == ""


def test_without_opentelemetry_the_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    words = "Traces need the packages of OpenTelemetry, which are not installed"
    with says(ConfigError, words), traced("otlp", "moa-test", print):
        pass
    assert not is_traced()


def test_a_collector_that_is_away_holds_nothing_up_and_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    told = list[str]()
    with traced("otlp", "moa-test", told.append):
        assert is_traced()
        for _ in range(2):
            span = begin_span("question", SPAN)
            assert span.traceparent.startswith(SPAN[:36])
            assert _FORM.fullmatch(span.traceparent)
            span.end()
            span.end()  # once more changes nothing
    assert not is_traced()
    assert len(told) == 1
    assert told[0].startswith("Traces cannot be handed over: ")


def test_what_names_no_span() -> None:
    assert _FORM.fullmatch(SPAN)
    nobody = SPAN.replace("b7ad6b7169203331", "0" * 16)
    for text in ("", "00", SPAN[:-1], SPAN + "0", SPAN.upper(), "ff" + SPAN[2:], nobody, "x" * 55):
        assert not _FORM.fullmatch(text)
