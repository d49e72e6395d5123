"""A live session: a session with its tensors, its drafters, its turn, its account, and the stream that listens to it.

Owned by the event loop, except `tensors`, which the inference thread owns. Invariants: a closed one is never
stepped; an idle one has neither an answer under way for a client nor a forward.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import unquote

from moa_shared.errors import MoaError, RateLimitError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.messages import Verdict
from moa_shared.tracing import begin_span

from moa_server.access.limits import Caller, TokenMeter
from moa_server.engine.server_drafts import SessionDrafting
from moa_server.engine.stepper import CodedRows, SessionTensors
from moa_server.session.memory_feed import MemoryBudget, MemoryFeed
from moa_server.session.session import Session, SessionPhase


@dataclass(slots=True)
class Usage:
    """Counts of a session.

    `tokens_in`: that the client sent; a text that it brings from another server counts as a whole. `finish`: of the
    newest answer; UNFINISHED: it has not ended, or there is none.
    """

    began: float
    questions: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Finish = Finish.UNFINISHED
    _known: int = 0  # tokens of the conversation that are counted
    _newest: int = 0  # question

    def on_ask(self, number: int, length: int) -> None:
        """A question, with which the conversation has so many tokens; or an answer that is continued."""
        self.questions += number != self._newest
        self._newest = number
        self.tokens_in += max(0, length - self._known)
        self._known = length
        self.finish = Finish.UNFINISHED

    def on_written(self, tokens: int, finish: Finish) -> None:
        self.tokens_out += tokens
        self._known += tokens
        self.finish = finish

    def facts(self, caller: Caller, now: float) -> dict[str, object]:
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
    """Records one answer. `tokens`: of the conversation with the question; `cached`: those that need not be read."""

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
        return self._span.traceparent[3:35]

    def on_step(self, step_ms: float, *, chose: bool) -> None:
        """A forward with rows of this answer has ended. `chose`: it chose tokens; else it read a part of a prompt."""
        self._steps += 1
        if self._phase == "queue":
            self._begin_phase("read prompt", self._now_ns() - round(1e6 * step_ms))
        if chose and self._phase == "read prompt":
            self._begin_phase("write", self._now_ns())

    def on_written(self, tokens: int, drafted: int, accepted: int) -> None:
        self._written += tokens
        self._drafted += drafted
        self._accepted += accepted

    def end(self, finish: str, problem: str = "") -> None:
        """The answer is over, or continues in another stream. `problem`: what went wrong, by its name."""
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

    `meter`: counts tokens against the caller's limit; None: there is no limit. `trace`: of the running answer; None:
    nothing is traced.
    """

    usage: Usage = field(default_factory=lambda: Usage(0.0))
    meter: TokenMeter | None = None
    trace: AnswerTrace | None = None

    def let_in(self, meter: TokenMeter | None) -> None:
        self.end_answer()
        self.meter = meter
        if meter is not None:
            meter.begin()

    def begin_trace(self, trace: AnswerTrace) -> None:
        self.end_trace("asked again")
        self.trace = trace

    def on_step(self, step_ms: float, *, chose: bool) -> None:
        if self.trace is not None:
            self.trace.on_step(step_ms, chose=chose)

    def on_written(self, tokens: int, drafted: int, accepted: int, finish: Finish) -> None:
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
        if self.trace is not None:
            self.trace.end(finish, problem)
            self.trace = None


class Listener:
    """A stream, as its session sees it; overrides what it wants to hear. Called on the event loop; must not wait."""

    def send_verdict(self, verdict: Verdict) -> None:
        """Tokens were committed, or the answer ended."""

    def on_rows(self, newest: CodedRows) -> None:
        """Memory rows are ready; the newest of them are coded already."""

    def on_spare_time(self) -> None:
        """There is time to encode memory that had to wait."""

    def on_failure(self, error: MoaError) -> None:
        """The session is lost."""

    def on_taken_over(self) -> None:
        """Another stream has attached itself to the session."""

    def on_displaced(self) -> None:
        """The stream must end to make room for others; the session is kept."""

    def on_held(self, refusal: RateLimitError) -> None:
        """The caller has used up its tokens: the session does not step until it is let in again."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A stream and its memory.

    `listener`: None: the session is detached. `feed`: the memory that the stream owes its client; None: the client
    wants none.
    """

    listener: Listener | None = None
    feed: MemoryFeed | None = None
    budget: MemoryBudget = field(default_factory=MemoryBudget)


@dataclass(slots=True)
class Turn:
    """Where a session is between two forwards.

    Args:
        queued: waits for its turn, since `queued_at` (time.monotonic).
        stepping: a forward for it, or a job that moves its pages, is queued or runs.
        held: its caller's limit of tokens is reached, and the answer waits until it is let in again.
    """

    queued: bool = False
    queued_at: float = 0.0
    stepping: bool = False
    held: bool = False
    steps: int = 0

    def queue(self, now: float) -> None:
        self.queued, self.queued_at = True, now


@dataclass(eq=False, slots=True)
class LiveSession:
    """A session on this server.

    `token`: by which a client finds it again; it opens the conversation to its holder, so it is never logged.
    """

    token: bytes = field(repr=False)
    session: Session
    tensors: SessionTensors
    drafting: SessionDrafting = field(default_factory=SessionDrafting)
    turn: Turn = field(default_factory=Turn)
    account: Account = field(default_factory=Account)
    stream: Attachment = field(default_factory=Attachment)
    caller: Caller = field(default_factory=Caller)
    closed: bool = False
    number: int = field(default_factory=count(1).__next__)

    @property
    def is_idle(self) -> bool:
        """Whether its keys and values can be spared."""
        answers = self.session.phase is SessionPhase.ANSWERING and self.stream.listener is not None
        return not answers and not self.turn.stepping

    def attach(self, caller: Caller, stream: Attachment) -> None:
        """Listens to this stream from now on; the one before it, if any, learns that."""
        if self.stream.listener is not None:
            self.stream.listener.on_taken_over()
        self.caller, self.stream = caller, stream

    def detach(self) -> None:
        self.account.end_trace("detached", "detached")
        self.stream = Attachment()

    def close(self) -> None:
        self.account.end_trace("closed")
        self.closed = True
        self.stream = Attachment()
