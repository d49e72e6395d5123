"""When sessions share pages: full pages are kept as they fill, and a session that would read kept text takes it over.

The loop's half decides, the inference thread's half (`PageStore`) moves pages; jobs run in the order of the decisions.
Invariants: pages change hands only between forwards of the session; what a session shares is counted by the index,
once for all.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from moa_kernels import Page
from moa_shared.errors import InternalError
from moa_shared.protocol.prefix_hash import NAMED_TOKENS

from moa_server.access.limits import Caller
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import LiveSession
from moa_server.engine.page_index import PrefixIndex, TextPage
from moa_server.engine.stepper import MemorySource, SessionTensors, Stepper
from moa_server.session.memory_feed import KeptPlane, RowStore, most_nbytes
from moa_server.verifier.kernel_target import KernelCache

StateKind = tuple[MemorySource, KeptPlane]


class PagesNotKept(InternalError):
    """The store does not have the pages that the index names; nothing was changed."""


@dataclass(slots=True)
class KeptPage:
    """Keys and values of a page of text, and the states that drafters' sources read of it."""

    keys_values: Page
    states: dict[StateKind, Page] = field(default_factory=dict)


class PageStore:
    def __init__(self) -> None:
        self._kept: dict[int, KeptPage] = {}

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for kept in self._kept.values() for page in (kept.keys_values, *kept.states.values()))

    def keep(self, tensors: SessionTensors, first: int, numbers: Sequence[int]) -> None:
        """Keeps a session's pages from page `first` on; it uses those that are kept already in place of its own.

        That changes no bit: only targets whose rows do not depend on what they are computed with have pages to share.
        """
        pages, stores = _cache(tensors).pages, _stores(tensors)
        for place, number in enumerate(numbers, first):
            kept = self._kept.get(number)
            if kept is None:
                kept = self._kept[number] = KeptPage(pages.full_page(place).hold())
            else:
                pages.replace_page(place, kept.keys_values)
            for kind, store in stores.items():
                if kind in kept.states:
                    store.replace_page(place, kept.states[kind])
                else:
                    kept.states[kind] = store.full_page(place).hold()

    def give(self, tensors: SessionTensors, cached: int, numbers: Sequence[int]) -> None:
        """Makes a session hold these pages, and nothing after them.

        `cached`: tokens of its text that the session holds itself; rows of its planes beyond are void.
        """
        missing = [number for number in numbers if number not in self._kept]
        kept = [self._kept[number] for number in numbers if number in self._kept]
        stores = _stores(tensors)
        if missing or any(kind not in page.states for page in kept for kind in stores):
            raise PagesNotKept(f"Of {len(numbers)} shared pages {len(missing)} are not kept, or lack their states.")
        _cache(tensors).adopt([page.keys_values for page in kept])
        for store in tensors.planes.values():
            store.crop(cached)
        for kind, store in stores.items():
            store.adopt([page.states[kind] for page in kept])

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            kept = self._kept.pop(number, None)
            for page in (kept.keys_values, *kept.states.values()) if kept is not None else ():
                page.let_go()


def _stores(tensors: SessionTensors) -> dict[StateKind, RowStore]:
    """The rows of a session that only a forward makes."""
    source = tensors.source
    return {(source, plane): tensors.planes[plane] for plane in tensors.states} if source is not None else {}


def _cache(tensors: SessionTensors) -> KernelCache:
    if not isinstance(tensors.cache, KernelCache):
        raise InternalError("Only the kernels' caches have pages to share.")
    return tensors.cache


@dataclass(frozen=True, slots=True)
class Adoption:
    """A session's text whose pages it is about to take over.

    `cached`: tokens that it holds by itself; `tokens`: then. `text`: the session's own list of tokens; `cache_version`:
    of the session. Both say whether it has moved on.
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
    """Shares pages of text among the sessions of one owner, or of all."""

    def __init__(self, stepper: Stepper, index: PrefixIndex[LiveSession], *, everyone: bool = False) -> None:
        self._stepper = stepper
        self._index = index
        self._everyone = everyone
        self._store = PageStore()

    # ------------------------------------------------------------ on the event loop

    def page_nbytes(self, live: LiveSession) -> int:
        return self._cache_nbytes(live) + sum(self._states(live).values()) if self._index.page_tokens else 0

    def cached_tokens(self, caller: Caller, prefix_hashes: Sequence[int]) -> int:
        """How much of a text a new session of this caller would take over, as far as its hashes tell.

        That is what it may share, and nothing that others hold. States for a drafter are not looked at: a page without
        those that the session will need is read again. `prefix_hashes`: of the text after each 64th token, shortest
        first.
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
        self._store.give(adoption.live.tensors, adoption.cached, _numbers(adoption.pages))

    def keep(self, filled: FilledPages) -> None:
        self._store.keep(filled.live.tensors, filled.first, _numbers(filled.pages))

    def drop(self, numbers: Sequence[int]) -> None:
        self._store.drop(numbers)


def _numbers(pages: Sequence[TextPage]) -> list[int]:
    return [page.number for page in pages]


log = structlog.get_logger()


class PageMoves:
    """Moves the pages of sessions that share text. `sharing`: None: sessions share nothing."""

    def __init__(self, sharing: PrefixSharing | None, jobs: SessionJobs, wake: Callable[[LiveSession], None]) -> None:
        self._sharing = sharing
        self._jobs = jobs
        self._wake = wake
        self._receiving: set[LiveSession] = set()

    # ------------------------------------------------------------ on the event loop

    def adopt(self, live: LiveSession) -> bool:
        """Begins to give a session the kept pages of the text that it would read; False if there are none.

        While it is being given pages nothing more is begun.
        """
        if live in self._receiving:
            return True
        if self._sharing is None or (adoption := self._sharing.begin(live)) is None:
            return False
        self._receiving.add(live)
        live.turn.stepping = True
        self._jobs.run(partial(self._give, self._sharing, adoption))
        return True

    def keep(self, live: LiveSession) -> None:
        if self._sharing is not None and not live.closed and (filled := self._sharing.on_read(live)) is not None:
            self._jobs.run(partial(self._keep, self._sharing, filled))

    def drop(self, numbers: Sequence[int]) -> None:
        if self._sharing is not None:
            self._jobs.run(partial(self._sharing.drop, numbers))

    def _on_given(self, adoption: Adoption) -> None:
        live, before = adoption.live, adoption.cached
        self._receiving.remove(live)
        live.turn.stepping = False
        if not live.closed and adoption.commit():
            log.info("prefix shared", session=live.number, tokens=adoption.tokens, more=adoption.tokens - before)
        self._wake(live)

    def _on_not_given(self, sharing: PrefixSharing, adoption: Adoption) -> None:
        """The session reads its text itself, and no other one may take these pages over."""
        sharing.discard(adoption)
        self._receiving.remove(adoption.live)
        adoption.live.turn.stepping = False
        self._wake(adoption.live)

    # ------------------------------------------------------------ on the inference thread

    def _give(self, sharing: PrefixSharing, adoption: Adoption) -> None:
        try:
            sharing.take_over(adoption)
        except PagesNotKept as error:
            log.error("shared pages are missing: they are read again", session=adoption.live.number, exc_info=error)
            self._jobs.post(partial(self._on_not_given, sharing, adoption))
        except Exception as error:  # noqa: BLE001 (whatever it raises ends only this session)
            self._jobs.post_loss(adoption.live, error)
            self._jobs.post(partial(self._on_not_given, sharing, adoption))
        else:
            self._jobs.post(partial(self._on_given, adoption))

    def _keep(self, sharing: PrefixSharing, filled: FilledPages) -> None:
        try:
            sharing.keep(filled)
        except Exception as error:  # noqa: BLE001 (as above)
            self._jobs.post(partial(sharing.discard, filled))
            self._jobs.post_loss(filled.live, error)
