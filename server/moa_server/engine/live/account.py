"""What a session's answers cost its caller, and the record of the running one."""

from __future__ import annotations

from dataclasses import dataclass, field

from moa_shared.errors import RateLimitError
from moa_shared.protocol.finish_rule import Finish

from moa_server.access.rates import TokenMeter
from moa_server.access.usage import Usage
from moa_server.engine.live.answer_spans import AnswerTrace


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
        """Counts an answer that begins or continues with this meter.

        Raises:
            RateLimitError: the caller has used up its tokens.
        """
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
