"""A live session: a session with its tensors, its memory feed, and the stream that listens to it.

Owned by the event loop, except `tensors`, which the inference thread owns. Invariants: a closed one is never
stepped; an idle one has neither an answer under way for a client nor a forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from moa_shared.errors import MoaError, RateLimitError
from moa_shared.protocol.messages import Verdict

from moa_server.access.caller import Caller
from moa_server.access.rates import TokenMeter
from moa_server.access.usage import Usage
from moa_server.drafting.draft_record import DraftRecord
from moa_server.engine.answer_trace import AnswerTrace
from moa_server.engine.stepper import CodedRows, MemorySource, SessionTensors
from moa_server.memory.budget import MemoryBudget
from moa_server.memory.feed import MemoryFeed
from moa_server.memory.row_store import KeptPlane
from moa_server.session.session import Phase, Session


class Listener(Protocol):
    """The stream that a session is attached to. Called on the event loop; must not wait."""

    def on_verdict(self, verdict: Verdict) -> None:
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


@dataclass(eq=False, slots=True)
class LiveSession:
    """A session on this server.

    Args:
        token: by which a client finds it again; whoever knows it can read the conversation, so it is never logged.
        number: what the log calls the session.
        source: what makes the memory rows that are kept; None: none are.
        widths: of the planes that are kept.
        feed: the memory that the attached stream owes its client; None: it wants none.
        drafts: how good the drafts of the attached stream are; None: none come.
        verifies_all: whether to verify all arrived nodes nevertheless.
        takes_drafts: whether drafts of the attached stream count; `server_drafts`: whether the server may draft too.
        drafter_knows: tokens that the server's drafter was told, whose hash is `drafter_hash`; 0: none.
        budget: how much time encoding memory may take.
        listener: the attached stream; None: detached.
        caller: whose stream it was attached to last.
        meter: counts its tokens against the caller's limit; None: there is no limit.
        usage: what it has used so far.
        trace: of the running answer; None: nothing is traced.
        held: the limit is reached, and the answer waits until it is let in again.
        queued: waits for its turn, since `queued_at` (time.monotonic); `stepping`: a forward for it is queued or runs.
    """

    token: bytes = field(repr=False)
    session: Session
    tensors: SessionTensors
    source: MemorySource | None = None
    widths: Mapping[KeptPlane, int] = field(default_factory=dict)
    feed: MemoryFeed | None = None
    drafts: DraftRecord | None = None
    verifies_all: bool = False
    takes_drafts: bool = True
    server_drafts: bool = False
    drafter_knows: int = 0
    drafter_hash: int = 0
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    listener: Listener | None = None
    meter: TokenMeter | None = None
    usage: Usage = field(default_factory=lambda: Usage(0.0))
    trace: AnswerTrace | None = None
    held: bool = False
    queued: bool = False
    queued_at: float = 0.0
    stepping: bool = False
    closed: bool = False
    caller: Caller = field(default_factory=Caller)
    steps: int = field(default=0)
    number: int = field(default_factory=count(1).__next__)

    def end_trace(self, finish: str, problem: str = "") -> None:
        """Ends what is recorded of the running answer."""
        if self.trace is not None:
            self.trace.end(finish, problem)
            self.trace = None

    @property
    def is_idle(self) -> bool:
        """Whether its keys and values can be spared."""
        answers = self.session.phase is Phase.ANSWERING and self.listener is not None
        return not answers and not self.stepping
