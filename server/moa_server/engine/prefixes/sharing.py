"""When sessions share pages: full pages are kept as they fill, and a session that would read kept text takes it over.

The loop's half decides, the inference thread's half (`PageStore`) moves pages; jobs run in the order of the decisions.
Invariants: pages change hands only between forwards of the session; what a session shares is counted by the index,
once for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from moa_shared.protocol.prefix_hash import NAMED_TOKENS

from moa_server.access.caller import Caller
from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.prefixes.index import PrefixIndex, TextPage
from moa_server.engine.prefixes.page_store import PageStore
from moa_server.engine.stepper import Stepper
from moa_server.memory.row_store import most_nbytes


@dataclass(frozen=True, slots=True)
class Adoption:
    """A session's text whose pages it is about to take over.

    Args:
        cached: tokens that it holds by itself; `tokens`: then.
        text: the session's own list of tokens; `cache_version`: of the session. Both say whether it has moved on.
    """

    live: LiveSession
    cached: int
    tokens: int
    text: list[int]
    cache_version: int
    pages: Sequence[TextPage]

    def commit(self) -> bool:
        """Counts the pages as read; False if the session has moved on, and what it holds of them is void."""
        return self.live.session.on_adopted(self.tokens, self.text, self.cache_version)


@dataclass(frozen=True, slots=True)
class FilledPages:
    """Pages of a session's text, from page `first` on, that a forward has filled."""

    live: LiveSession
    first: int
    pages: Sequence[TextPage]


class PrefixSharing:
    """Shares pages of text among the sessions of one owner, or of all.

    Args:
        index: knows what is kept, and who uses it.
        everyone: sessions of all clients share, not only those of one.
    """

    def __init__(self, stepper: Stepper, index: PrefixIndex[LiveSession], *, everyone: bool = False) -> None:
        self._stepper = stepper
        self._index = index
        self._everyone = everyone
        self._store = PageStore()

    # ------------------------------------------------------------ on the event loop

    def page_nbytes(self, live: LiveSession) -> int:
        """Bytes of a page that a session shares: each one less that it must be promised."""
        return self._cache_nbytes(live) + sum(self._states(live).values()) if self._index.page_tokens else 0

    def cached_tokens(self, caller: Caller, prefix_hashes: Sequence[int]) -> int:
        """How much of a text a new session of this caller would take over, as far as its hashes tell.

        That is what it may share, and nothing that others hold. States for a drafter are not looked at: a page without
        those that the session will need is read again.

        Args:
            prefix_hashes: of the text after each 64th token, shortest first.
        """
        size = self._index.page_tokens
        if not size or size % NAMED_TOKENS or not prefix_hashes:
            return 0
        every = size // NAMED_TOKENS
        return size * self._index.count_named(self._owner_of(caller), prefix_hashes[every - 1 :: every])

    def begin(self, live: LiveSession) -> Adoption | None:
        """Finds kept pages beyond what a session holds of its text, and reserves them for it; None if there are none.

        Its pages that no longer belong to its text are let go.
        """
        size = self._index.page_tokens
        if not size or live.closed:
            return None
        session = live.session
        self._index.let_go(live, session.cached // size)
        if live.turn.stepping:
            return None
        most = (len(session.tokens) - 1) // size * size  # the newest token is always fed
        if most < session.cached + 1:
            return None
        pages = self._index.find(self._owner(live), session.tokens[:most], self._states(live))
        tokens = len(pages) * size
        if tokens <= session.cached:
            return None
        self._index.hold(live, pages)
        return Adoption(live, session.cached, tokens, session.tokens, session.cache_version, pages)

    def on_read(self, live: LiveSession) -> FilledPages | None:
        """The pages that a forward has filled, if any: the inference thread is to keep them."""
        size, session = self._index.page_tokens, live.session
        held = self._index.held(live)
        if not size or session.cached // size <= len(held):
            return None
        if held and held[0].owner != self._owner(live):
            return None  # the conversation has moved to another client, who owns none of what it shares
        first = len(held)
        text = session.tokens[: session.cached]
        nbytes, states = self._cache_nbytes(live), self._states(live)
        pages = self._index.extend(live, self._owner(live), text, nbytes, states)
        return FilledPages(live, first, pages)

    def discard(self, pages: FilledPages | Adoption) -> None:
        """Has pages that could not be kept, or given, found by no session; this one reads its text itself."""
        self._index.discard(pages.pages)
        self._index.let_go(pages.live, pages.live.session.cached // self._index.page_tokens)

    def _owner(self, live: LiveSession) -> str:
        return self._owner_of(live.caller)

    def _owner_of(self, caller: Caller) -> str:
        return "" if self._everyone else caller.owner

    def _states(self, live: LiveSession) -> dict[Hashable, int]:
        """The states that must be kept with a session's pages, and their bytes in a page."""
        source, stepper, size = live.drafting.source, self._stepper, self._index.page_tokens
        if source is None:
            return {}
        made = {plane: width for plane, width in live.drafting.widths.items() if stepper.made_by_forward(source, plane)}
        return {(source, plane): most_nbytes(width, size) for plane, width in made.items()}

    def _cache_nbytes(self, live: LiveSession) -> int:
        return live.tensors.cache.most_nbytes(self._index.page_tokens)

    # ------------------------------------------------------------ on the inference thread

    def take_over(self, adoption: Adoption) -> None:
        """Gives a session the pages that it has reserved.

        Raises:
            PagesNotKept: the session holds what it held.
        """
        self._store.give(adoption.live.tensors, adoption.cached, _numbers(adoption.pages))

    def keep(self, filled: FilledPages) -> None:
        """Keeps pages.

        Raises:
            InternalError, KernelError: the session does not hold them in full.
        """
        self._store.keep(filled.live.tensors, filled.first, _numbers(filled.pages))

    def drop(self, numbers: Sequence[int]) -> None:
        """Frees pages that the index has dropped."""
        self._store.drop(numbers)


def _numbers(pages: Sequence[TextPage]) -> list[int]:
    return [page.number for page in pages]
