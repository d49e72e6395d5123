"""What one session has used, for the line that the log keeps of it. Pure; no text is in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from moa_shared.errors import RateLimitError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.tracing.spans import begin_span

from moa_server.access.caller import Caller
from moa_server.access.limits import TokenMeter


@dataclass(slots=True)
class Usage:
    """Counts of a session.

    Args:
        began: when, in seconds of the clock of `facts`.
        questions: that were asked.
        tokens_in: that the client sent; a text that it brings from another server counts as a whole.
        tokens_out: of the answers.
        finish: of the newest answer; UNFINISHED: it has not ended, or there is none.
    """

    began: float
    questions: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Finish = Finish.UNFINISHED
    _known: int = 0  # tokens of the conversation that are counted
    _newest: int = 0  # question

    def on_ask(self, number: int, length: int) -> None:
        """A question, with which the conversation has so many tokens; or an answer that is continued.

        Args:
            number: the client's of the question.
        """
        self.questions += number != self._newest
        self._newest = number
        self.tokens_in += max(0, length - self._known)
        self._known = length
        self.finish = Finish.UNFINISHED

    def on_written(self, tokens: int, finish: Finish) -> None:
        """So many tokens of an answer."""
        self.tokens_out += tokens
        self._known += tokens
        self.finish = finish

    def facts(self, caller: Caller, now: float) -> dict[str, object]:
        """For the log."""
        return {
            "key": caller.key or (caller.owner if caller.is_proven else ""),
            "peer": unquote(caller.peer),
            "questions": self.questions,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish": self.finish.name.lower(),
            "seconds": round(now - self.began, 1),
        }


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


@dataclass(slots=True)
class Account:
    """The counts of one session.

    Args:
        usage: of the whole session.
        meter: counts tokens against the caller's limit; None: there is no limit.
        trace: of the running answer; None: nothing is traced.
    """

    usage: Usage = field(default_factory=lambda: Usage(0.0))
    meter: TokenMeter | None = None
    trace: AnswerTrace | None = None

    def let_in(self, meter: TokenMeter | None) -> None:
        """Counts an answer that begins or continues with this meter."""
        self.end_answer()
        self.meter = meter
        if meter is not None:
            meter.begin()

    def begin_trace(self, trace: AnswerTrace) -> None:
        """Records an answer."""
        self.end_trace("asked again")
        self.trace = trace

    def on_step(self, step_ms: float, *, chose: bool) -> None:
        """A forward for the answer has ended."""
        if self.trace is not None:
            self.trace.on_step(step_ms, chose=chose)

    def on_written(self, tokens: int, drafted: int, accepted: int, finish: Finish) -> None:
        """A forward has committed tokens of the answer."""
        self.usage.on_written(tokens, finish)
        if self.trace is not None:
            self.trace.on_written(tokens, drafted, accepted)
            if finish is not Finish.UNFINISHED:
                self.end_trace(finish.name.lower())

    def pay(self, read: int, written: int, *, answering: bool) -> RateLimitError | None:
        """Pays for what a forward has computed, void or not; why the answer must pause here, if it must."""
        if self.meter is None:
            return None
        self.meter.read(read)
        self.meter.write(written)
        if not answering:
            self.meter.end()
            return None
        return self.meter.refusal() if written else None

    def end_answer(self) -> None:
        """Gives back what the answer did not use of the caller's limit."""
        if self.meter is not None:
            self.meter.end()

    def end_trace(self, finish: str, problem: str = "") -> None:
        """Ends the record of the running answer."""
        if self.trace is not None:
            self.trace.end(finish, problem)
            self.trace = None
