"""The stream that a session is attached to, and the memory that it owes its client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from moa_shared.errors import MoaError, RateLimitError
from moa_shared.protocol.messages import Verdict

from moa_server.engine.stepper import CodedRows
from moa_server.memory.budget import MemoryBudget
from moa_server.memory.feed import MemoryFeed


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
