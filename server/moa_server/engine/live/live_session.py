"""A live session: a session with its tensors, its drafters, its turn, its account, and the stream that listens to it.

Owned by the event loop, except `tensors`, which the inference thread owns. Invariants: a closed one is never
stepped; an idle one has neither an answer under way for a client nor a forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from moa_server.access.caller import Caller
from moa_server.engine.live.account import Account
from moa_server.engine.live.attachment import Attachment
from moa_server.engine.live.session_drafting import SessionDrafting
from moa_server.engine.live.turn import Turn
from moa_server.engine.stepper import SessionTensors
from moa_server.session.session import Phase, Session


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
        answers = self.session.phase is Phase.ANSWERING and self.stream.listener is not None
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
