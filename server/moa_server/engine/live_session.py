"""The stream that a session is attached to, and the memory that it owes its client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from moa_shared.errors import MoaError, RateLimitError
from moa_shared.protocol.messages import Verdict

from moa_server.access.caller import Caller
from moa_server.drafting.growth_rule import DraftRecord
from moa_server.drafting.session_drafter import OwnDrafter
from moa_server.engine.account import Account
from moa_server.engine.stepper import CodedRows, MemorySource, SessionTensors
from moa_server.memory.feed import MemoryBudget, MemoryFeed
from moa_server.memory.row_store import KeptPlane
from moa_server.session.session import Session, SessionPhase


class Listener(Protocol):
    """A stream, as its session sees it. Called on the event loop; must not wait."""

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


@dataclass(frozen=True, slots=True)
class Attachment:
    """A stream and its memory.

    Args:
        listener: None: the session is detached.
        feed: the memory that the stream owes its client; None: the client wants none.
        budget: how much time encoding that memory may take.
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
        steps: forwards that it was in.
    """

    queued: bool = False
    queued_at: float = 0.0
    stepping: bool = False
    held: bool = False
    steps: int = 0

    def queue(self, now: float) -> None:
        """Begins to wait."""
        self.queued, self.queued_at = True, now

    def take(self) -> None:
        """Is considered for the next forward."""
        self.queued = False

    def occupy(self) -> None:
        """A forward, or a job that moves its pages, is submitted."""
        self.stepping = True

    def vacate(self) -> None:
        """That job has ended."""
        self.stepping = False

    def end_step(self) -> None:
        """A forward has ended."""
        self.stepping = False
        self.steps += 1

    def hold(self) -> None:
        """Does not step until `let_in`."""
        self.held = True

    def let_in(self) -> None:
        """May step."""
        self.held = False


@dataclass(slots=True)
class SessionDrafting:
    """The drafters of one session.

    Args:
        source: makes the memory rows that are kept; None: none are.
        widths: of the planes that are kept.
        record: how good the drafts of the attached stream are; None: none come.
        takes_drafts: whether they count.
        verifies_all: whether all of their nodes are verified, even where that does not pay.
        by_server: whether the server drafts too.
        drafts_forced: whether it drafts what an answer's form forces, for which it needs no drafter.
    """

    source: MemorySource | None = None
    widths: Mapping[KeptPlane, int] = field(default_factory=dict)
    record: DraftRecord | None = None
    takes_drafts: bool = True
    verifies_all: bool = False
    by_server: bool = False
    drafts_forced: bool = False
    _told: int = 0  # tokens that the server's drafter knows, and their hash
    _told_hash: int = 0

    @property
    def own_drafter(self) -> OwnDrafter | None:
        """The server's drafter of this session; None: the server does not draft."""
        return self.source.drafter if self.by_server and self.source is not None else None

    @property
    def fruitless_steps(self) -> int:
        """Steps since a guess of the attached stream was right."""
        return self.record.fruitless_steps if self.record is not None else 0

    def agree(
        self,
        *,
        by_server: bool,
        drafts_forced: bool = False,
        record: DraftRecord | None = None,
        takes_drafts: bool = True,
        verifies_all: bool = False,
    ) -> None:
        """Settles who drafts for a new stream."""
        self.by_server, self.drafts_forced, self.record = by_server, drafts_forced, record
        self.takes_drafts, self.verifies_all = takes_drafts, verifies_all

    def keep(self, source: MemorySource, widths: Mapping[KeptPlane, int]) -> list[KeptPlane]:
        """Keeps rows of these planes from now on; returns the planes that were not kept before."""
        before: Mapping[KeptPlane, int] = self.widths if self.source is source else {}
        self.source, self.widths = source, {**before, **widths}
        self.forget()
        return [plane for plane in widths if plane not in before]

    def tell(self, session: Session) -> int:
        """Counts the committed tokens as known to the server's drafter; returns how many it knew before."""
        held, told = len(session.tokens), self._told
        known = told if told <= held and session.hashes.at(told) == self._told_hash else 0
        self._told, self._told_hash = held, session.hashes.at(held)
        return known

    def forget(self) -> None:
        """The server's drafter knows nothing: it must be told the whole text."""
        self._told = 0


@dataclass(eq=False, slots=True)
class LiveSession:
    """A session on this server.

    Args:
        token: by which a client finds it again; it opens the conversation to its holder, so it is never logged.
        caller: whose stream it was attached to last.
        number: its name in the log.
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
        """Has no stream from now on."""
        self.account.end_trace("detached", "detached")
        self.stream = Attachment()

    def close(self) -> None:
        """Is never stepped again."""
        self.account.end_trace("closed")
        self.closed = True
        self.stream = Attachment()
