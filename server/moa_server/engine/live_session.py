"""A live session: its tensors, its drafters, its turn, its account, who listens to it, and who observes them all.

Owned by the event loop, except `tensors`, which the inference thread owns. Invariants: a closed one is never stepped;
an idle one has neither an answer under way for a client nor a forward; listeners and observers never wait, and no text
is told to observers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from itertools import count
from urllib.parse import unquote

import structlog
from moa_shared.errors import MoaError, RateLimitError
from moa_shared.protocol.messages import Finish, Verdict
from moa_shared.tracing import begin_span

from moa_server.access.limits import Caller, TokenMeter
from moa_server.drafting.draft_decision import SessionDrafting
from moa_server.engine.schedule import Rows
from moa_server.engine.stepper import CodedRows, SessionTensors
from moa_server.session.memory_feed import MemoryBudget, MemoryFeed
from moa_server.session.session import Session, SessionPhase

log = structlog.get_logger()


class AnswerTrace:
    """Records one answer. `tokens`: of the conversation with the question; `cached`: those that need not be read."""

    def __init__(
        self, parent: str, session: int, tokens: int, cached: int, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._now_ns = now_ns
        self._span = begin_span("serve answer", parent, at_ns=now_ns(), session=session, tokens=tokens, cached=cached)
        self._phase, self._part = "queue", begin_span("queue", self._span.traceparent, at_ns=now_ns())
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
        counts = {"steps": self._steps, "written": self._written, "drafted": self._drafted, "accepted": self._accepted}
        self._span.note(**counts, finish=finish)
        self._span.end(problem=problem)

    def _begin_phase(self, phase: str, at_ns: int) -> None:
        self._part.end(at_ns=at_ns)
        self._phase, self._part = phase, begin_span(phase, self._span.traceparent, at_ns=at_ns)


@dataclass(slots=True)
class Account:
    """The counts of one session."""

    began: float = 0.0  # when the session did
    questions: int = 0
    tokens_in: int = 0  # that the client sent; a text that it brings from another server counts as a whole
    tokens_out: int = 0
    finish: Finish = Finish.UNFINISHED  # of the newest answer; UNFINISHED: it has not ended, or there is none
    meter: TokenMeter | None = None  # counts tokens against the caller's limit; None: there is no limit
    trace: AnswerTrace | None = None  # of the running answer; None: nothing is traced
    _known: int = 0  # tokens of the conversation that are counted
    _newest: int = 0  # question

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

    def on_ask(self, number: int, length: int) -> None:
        """A question, with which the conversation has so many tokens; or an answer that is continued."""
        self.questions += number != self._newest
        self._newest = number
        self.tokens_in += max(0, length - self._known)
        self._known = length
        self.finish = Finish.UNFINISHED

    def let_in(self, meter: TokenMeter | None) -> None:
        self.end_answer()
        self.meter = meter
        if meter is not None:
            meter.begin()

    def begin_trace(self, trace: AnswerTrace) -> None:
        self.end_trace("asked again")
        self.trace = trace

    def on_written(self, tokens: int, drafted: int, accepted: int, finish: Finish) -> None:
        self.tokens_out += tokens
        self._known += tokens
        self.finish = finish
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
    """A stream and its memory."""

    listener: Listener | None = None  # None: the session is detached
    feed: MemoryFeed | None = None  # the memory that the stream owes its client; None: the client wants none
    budget: MemoryBudget = field(default_factory=MemoryBudget)


@dataclass(slots=True)
class Turn:
    """Where a session is between two forwards."""

    queued: bool = False  # waits for its turn, since `queued_at` (time.monotonic)
    queued_at: float = 0.0
    stepping: bool = False  # a forward for it, or a job that moves its pages, is queued or runs
    held: bool = False  # its caller's limit of tokens is reached, and the answer waits until it is let in again
    steps: int = 0


@dataclass(eq=False, slots=True)
class LiveSession:
    """A session on this server."""

    token: bytes = field(repr=False)  # opens the conversation to its holder, so it is never logged
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
        if self.stream.listener is not None:
            self.stream.listener.on_taken_over()
        self.caller, self.stream = caller, stream

    def read_again(self, start: int) -> None:
        """Forgets what is cached of the text from position `start` on."""
        self.session.forget_cache(start)
        if self.stream.feed is not None:
            self.stream.feed.on_forgotten(min(start, self.session.cached))

    def detach(self) -> None:
        self.account.end_trace("detached", "detached")
        self.stream = Attachment()

    def close(self) -> None:
        self.account.end_trace("closed")
        self.closed = True
        self.stream = Attachment()


class Resume(StrEnum):
    CACHED = "cached"  # its session, with keys and values
    READ_AGAIN = "read_again"  # its session, without
    TAKEN_OVER = "taken_over"  # its session, which another stream still had
    UNKNOWN = "unknown"  # none: it has expired, or is another server's


class FrameBytes(StrEnum):
    VERDICTS = "verdicts"  # and other small frames of the server
    MEMORY = "memory"
    STATE = "state"
    DRAFTS = "drafts"
    REQUESTS = "requests"  # and other frames of the client


@dataclass(slots=True)
class AnswerSteps:
    """What the steps of all answers in a forward have brought."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0  # nodes of devices
    accepted: int = 0
    own_drafted: int = 0  # nodes that only the server guessed
    own_accepted: int = 0
    stale: int = 0  # nodes of devices that came too late since the forward before
    run_ahead: int = 0  # steps that verified nothing of a device that drafts


class Observer:
    """What happens on a server, a few times for each forward.

    Subclasses override events. What one raises is logged once, for it may come with each forward, and goes no further:
    it costs no call and no answer.
    """

    def __init_subclass__(cls) -> None:
        for name in vars(Observer).keys() & vars(cls).keys():
            if name.startswith("on_"):
                setattr(cls, name, _harmless(vars(cls)[name]))

    def on_planned(self, waits: Sequence[float]) -> None:
        """A forward begins, for sessions that have waited so many seconds."""

    def on_forward(self, rows: Rows, step_ms: float, drafting_ms: float, steps: AnswerSteps) -> None:
        """A forward has ended, and continued answers; `drafting_ms`: how long the server drafted before it."""

    def on_finish(self, finish: Finish) -> None:
        """An answer has ended."""

    def on_lost(self) -> None:
        """An error has ended a session."""

    def on_call(self, method: str) -> None:
        """A call has begun."""

    def on_refusal(self, code: str) -> None:
        """A call has ended with an error of this code."""

    def on_resume(self, kind: Resume) -> None:
        """A client has come back."""

    def on_sent(self, kind: FrameBytes, count: int) -> None:
        """So many bytes of frames were written."""

    def on_received(self, kind: FrameBytes, count: int) -> None:
        """So many bytes of frames were read."""


def _harmless(event: Callable[..., None]) -> Callable[..., None]:
    has_told = False

    @wraps(event)
    def run(*args: object) -> None:
        nonlocal has_told
        try:
            event(*args)
        except Exception:
            if not has_told:
                has_told = True
                log.exception("observing failed", seen=event.__name__)

    return run
