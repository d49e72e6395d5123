"""The spans of one answer, from its question to its last verdict, made of its events."""

from __future__ import annotations

import time

from moa_shared.tracing import Span, begin_span

from moa_client.conversation.events import Committed, Ended, Event, LinkChanged, LinkState, Provisional
from moa_client.conversation.figures import Figures
from moa_client.link.connection import StreamOpened

AWAY = (LinkState.OFFLINE, LinkState.WAITING)


class AnswerSpans:
    """The trace of one answer at the client. `parent`: traceparent of what asked; empty: nothing is above it."""

    def __init__(self, parent: str = "") -> None:
        self._span = begin_span("answer", parent)
        self._away: Span | None = None
        self._has_text = False
        self._standalone = 0

    @property
    def traceparent(self) -> str:
        return self._span.traceparent

    def on_opened(self, stream: StreamOpened) -> None:
        now_ns = time.time_ns()
        began_ns = now_ns - round(1e6 * stream.took_ms)
        opening = begin_span("open stream", self.traceparent, at_ns=began_ns, server=stream.label)
        opening.note(cached_tokens=stream.opened.cached_tokens)
        opening.end(at_ns=now_ns)

    def on_event(self, event: Event) -> None:
        match event:
            case Committed(tokens=tokens) if tokens and not self._has_text:
                self._has_text = True
                self._span.mark("first token")
            case Provisional(tokens=tokens):
                self._standalone += len(tokens)
            case LinkChanged(state=state) if state in AWAY:
                if self._away is None:
                    self._away = begin_span("without server", self.traceparent, state=state.value)
            case LinkChanged():
                self._end_outage()
            case Ended(provisional=provisional):
                self._span.note(ended_standalone=provisional)

    def end(self, figures: Figures, problem: str = "") -> None:
        """The answer is over. `problem`: code of the error that ended it; empty: none."""
        self._end_outage()
        self._span.note(
            tokens=figures.tokens,
            drafted=figures.drafted,
            accepted=figures.accepted,
            alone_tokens=self._standalone,
            finish=figures.finish.name.lower(),
        )
        self._span.end(problem=problem)

    def _end_outage(self) -> None:
        if self._away is not None:
            self._away.end()
            self._away = None
