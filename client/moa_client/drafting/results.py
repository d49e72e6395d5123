"""What a drafter's thread posts, and what online drafting asks of one.

Pure: a drafter in virtual time needs neither a thread nor an event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moa_shared.drafting import Growth
from moa_shared.errors import MoaError
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

from moa_client.drafting.streamed import DraftStep


class OnlineDrafter(Protocol):
    """Drafts one thing at a time, and posts the result later."""

    @property
    def busy(self) -> bool:
        """Whether something that was asked for has not come."""
        ...

    def grow(self, step: DraftStep, sampling: Sampling) -> None:
        """Runs one step of a streamed draft; `DraftExtended` comes."""
        ...

    def draft(self, committed: int, sampling: Sampling) -> None:
        """Makes a whole draft; `DraftCompleted` comes."""
        ...


@dataclass(frozen=True, slots=True)
class DraftExtended:
    """A step of a streamed draft.

    Args:
        took_ms: on the thread; None if the drafter had a prompt to read first, which is not typical of other steps.
    """

    step: DraftStep
    growth: Growth
    took_ms: float | None


@dataclass(frozen=True, slots=True)
class DraftCompleted:
    """A whole draft, for one round.

    Args:
        committed: tokens that the drafter knew.
    """

    committed: int
    tree: DraftTree


@dataclass(frozen=True, slots=True)
class TokenWritten:
    """One more token of standalone text; None: the drafter has nothing to say.

    Args:
        serial: of the text that it continues; `length`: how many tokens of it have been shown.
        chance: that it is the target's, if all before it are.
    """

    serial: int
    length: int
    token: int | None
    chance: float = 1.0


@dataclass(frozen=True, slots=True)
class DrafterFailed:
    """The drafter has failed, or could not read the server's memory (ProtocolError)."""

    error: MoaError


DrafterResult = DraftExtended | DraftCompleted | TokenWritten | DrafterFailed


class ResultInbox(Protocol):
    """Where a drafter's results go."""

    def post(self, item: DrafterResult, /) -> None:
        """Appends a result; called on the event loop."""
