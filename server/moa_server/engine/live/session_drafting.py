"""Who drafts for a session, how well, and which rows are kept for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moa_server.drafting.draft_record import DraftRecord
from moa_server.drafting.session_drafter import OwnDrafter
from moa_server.engine.stepper import MemorySource
from moa_server.memory.row_store import KeptPlane
from moa_server.session.session import Session


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
