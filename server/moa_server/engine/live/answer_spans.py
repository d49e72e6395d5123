"""The spans of one answer at the server: waiting for a forward, reading the prompt, writing.

State: which of the three is under way. Invariant: they follow each other without gaps below one span.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from moa_shared.tracing.spans import begin_span


class AnswerTrace:
    """Records one answer.

    Args:
        parent: traceparent of the client's span; empty: nothing is above it.
        session: its number in the log.
        tokens: of the conversation with the question; `cached`: those that need not be read.
        now_ns: as `time.time_ns`.
    """

    def __init__(
        self, parent: str, session: int, tokens: int, cached: int, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._now_ns = now_ns
        self._span = begin_span("serve answer", parent, at_ns=now_ns(), session=session, tokens=tokens, cached=cached)
        self._phase = "queue"
        self._part = begin_span("queue", self._span.traceparent, at_ns=now_ns())
        self._steps = self._written = self._drafted = self._accepted = 0

    @property
    def trace_id(self) -> str:
        """For the log."""
        return self._span.traceparent[3:35]

    def on_step(self, step_ms: float, *, chose: bool) -> None:
        """A forward with rows of this answer has ended.

        Args:
            chose: it chose tokens; else it read a part of a prompt.
        """
        self._steps += 1
        if self._phase == "queue":
            self._begin_phase("read prompt", self._now_ns() - round(1e6 * step_ms))
        if chose and self._phase == "read prompt":
            self._begin_phase("write", self._now_ns())

    def on_written(self, tokens: int, drafted: int, accepted: int) -> None:
        """Tokens were chosen; so many draft nodes were verified for that, and so many of them are among the tokens."""
        self._written += tokens
        self._drafted += drafted
        self._accepted += accepted

    def end(self, finish: str, problem: str = "") -> None:
        """The answer is over, or continues in another stream.

        Args:
            finish: why.
            problem: what went wrong, by its name.
        """
        self._part.end()
        self._span.note(
            steps=self._steps,
            written=self._written,
            drafted=self._drafted,
            accepted=self._accepted,
            finish=finish,
        )
        self._span.end(problem=problem)

    def _begin_phase(self, phase: str, at_ns: int) -> None:
        self._part.end(at_ns=at_ns)
        self._phase = phase
        self._part = begin_span(phase, self._span.traceparent, at_ns=at_ns)
