"""Pages of text that sessions share: which text each holds, who uses it, which goes first, and when they change hands.

The index is pure: a tree of pages for each owner, of which each holder has a path from the root. Invariants: a page is
found for use by all tokens up to its end, never by a hash alone, which only tells how much is kept; pages in use are
never dropped, and a page is dropped after those that continue it.

Full pages are kept as they fill, and a session that would read kept text takes it over. The event loop decides, and the
inference thread moves what is in the pages, in the order of the decisions. Invariants: pages change hands only between
forwards of the session; what a session shares is counted by the index, once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import structlog
from moa_kernels import Page
from moa_shared.errors import InternalError
from moa_shared.protocol.prefix_hash import NAMED_TOKENS, hash_after

from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import MemorySource
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import LiveSession
from moa_server.engine.stepper import SessionTensors
from moa_server.session.memory_feed import KeptPlane, RowStore, most_nbytes
from moa_server.verifier.kernel_target import KernelCache

log = structlog.get_logger()

Holder = TypeVar("Holder", bound=Hashable)


class TextPage:
    """A page of text whose keys and values are kept."""

    def __init__(self, owner: str, parent: TextPage | None = None, text: bytes = b"") -> None:
        self.owner, self.parent, self.text = owner, parent, text
        self.nbytes = 0  # of keys, values and states
        self.holders = 0  # sessions that use it
        self.prefix_hash = 0  # of all tokens up to its end
        self.kinds: set[Hashable] = set()  # of states that are kept with it
        self.pages: dict[bytes, TextPage] = {}  # that continue it, by their tokens
        self.named: dict[int, TextPage] = {}  # the same, by their hashes
        # What is in it, on the inference thread; None: nothing yet, or no more.
        self.keys_values: Page | None = None
        self.states: dict[Hashable, Page] = {}


class PrefixIndex(Generic[Holder]):
    """Finds pages of text that are kept. `page_tokens`: tokens of a page; 0: nothing is shared."""

    def __init__(self, page_tokens: int, on_dropped: Callable[[Sequence[TextPage]], None]) -> None:
        self.page_tokens = page_tokens
        self.nbytes = 0  # of all pages that are kept
        self.spare_nbytes = 0  # of those that no session holds
        self._on_dropped = on_dropped
        self._roots: dict[str, TextPage] = {}
        self._held: dict[Holder, list[TextPage]] = {}
        self._spare: dict[TextPage, None] = {}  # the one to go first comes first

    def held(self, holder: Holder) -> Sequence[TextPage]:
        return self._held.get(holder, ())

    def find(self, owner: str, tokens: Sequence[int], kinds: Collection[Hashable] = ()) -> list[TextPage]:
        """The longest run of kept pages that `tokens` begins with."""
        found: list[TextPage] = []
        page = self._roots.get(owner)
        for text in self._texts(tokens) if page is not None else ():
            page = page.pages.get(text) if page is not None else None
            if page is None or not page.kinds.issuperset(kinds):
                break
            found.append(page)
        return found

    def count_named(self, owner: str, prefix_hashes: Iterable[int]) -> int:
        """How many pages of a text are kept, as far as its hashes tell; each costs one look-up.

        `prefix_hashes`: of the text up to the end of each page, shortest first. They are followed from page to page, so
        that one call asks about one text.
        """
        page, found = self._roots.get(owner), 0
        for prefix_hash in prefix_hashes:
            page = page.named.get(prefix_hash) if page is not None else None
            if page is None:
                break
            found += 1
        return found

    def hold(self, holder: Holder, pages: Sequence[TextPage]) -> None:
        """Makes a holder use these pages, as `find` gave them, and no others."""
        for page in pages:
            page.holders += 1
            if page.holders == 1:
                del self._spare[page]
                self.spare_nbytes -= page.nbytes
        self.let_go(holder)
        self._held[holder] = list(pages)

    def extend(
        self,
        holder: Holder,
        owner: str,
        tokens: Sequence[int],
        nbytes: int,
        state_nbytes: Mapping[Hashable, int] | None = None,
    ) -> list[TextPage]:
        """Keeps the full pages of a holder's text beyond those it holds, and holds them; returns these.

        Where others had kept a page of the same text, that one. `nbytes`: of its keys and values; `state_nbytes`: of
        its states, by kind.
        """
        before = len(self.held(holder))
        if not self.page_tokens or len(tokens) // self.page_tokens <= before:
            return []
        held = self._held.setdefault(holder, [])
        page = held[-1] if held else self._roots.setdefault(owner, TextPage(owner))
        for number, text in enumerate(self._texts(tokens, before), before):
            following = page.pages.get(text)
            if following is None:
                following = page.pages[text] = TextPage(owner, page, text)
                following.prefix_hash = hash_after(
                    page.prefix_hash, number * self.page_tokens, np.frombuffer(text, np.int32).tolist()
                )
                page.named[following.prefix_hash] = following
                following.nbytes = nbytes
                self.nbytes += nbytes
            elif not following.holders:
                del self._spare[following]
                self.spare_nbytes -= following.nbytes
            following.holders += 1
            for kind, added in (state_nbytes or {}).items():
                if kind not in following.kinds:
                    following.kinds.add(kind)
                    following.nbytes += added
                    self.nbytes += added
            held.append(following)
            page = following
        return held[before:]

    def let_go(self, holder: Holder, keep: int = 0) -> None:
        """Ends a holder's use of its pages after the first `keep`; they stay while there is room."""
        held = self._held.get(holder, [])
        for page in reversed(held[keep:]):  # those that continue others go first
            page.holders -= 1
            if not page.holders:
                self._spare[page] = None
                self.spare_nbytes += page.nbytes
        del held[keep:]
        if not held:
            self._held.pop(holder, None)

    def bytes_left_by(self, holders: Iterable[Holder]) -> Iterator[int]:
        """For each holder, what would be unused once it and those before it let go."""
        users: dict[TextPage, int] = {}
        for holder in holders:
            left = 0
            for page in self.held(holder):
                users[page] = users.get(page, page.holders) - 1
                left += page.nbytes if not users[page] else 0
            yield left

    def drop(self, nbytes: int) -> None:
        """Drops pages that no session holds, least recently used first, until `nbytes` are free or none is left."""
        dropped: list[TextPage] = []
        while nbytes > 0 and self._spare:
            page = next(iter(self._spare))
            del self._spare[page]
            self.nbytes -= page.nbytes
            self.spare_nbytes -= page.nbytes
            nbytes -= page.nbytes
            dropped.append(page)
            self.cut(page)
        if dropped:
            self._on_dropped(dropped)

    def cut(self, page: TextPage) -> None:
        """Has a page, and those that continue it, found no more; their holders keep them."""
        parent = page.parent
        if parent is not None and parent.pages.get(page.text) is page:
            del parent.pages[page.text]
            if parent.named.get(page.prefix_hash) is page:  # no other text has its hash
                del parent.named[page.prefix_hash]
            if parent.parent is None and not parent.pages and self._roots.get(parent.owner) is parent:
                del self._roots[parent.owner]

    def _texts(self, tokens: Sequence[int], first: int = 0) -> Iterator[bytes]:
        """The full pages of a text, from page `first` on; equal bytes are equal tokens."""
        size = self.page_tokens
        if not size:
            return
        pages = np.asarray(tokens[first * size : len(tokens) // size * size], np.int32).reshape(-1, size)
        for page in pages:
            yield page.tobytes()


class SharedPages:
    """Shares pages of text among the sessions of one owner.

    `page_tokens`: tokens of a page; 0: nothing is shared. `everyone`: all sessions share.
    """

    def __init__(
        self, jobs: SessionJobs, wake: Callable[[LiveSession], None], page_tokens: int = 0, *, everyone: bool = False
    ) -> None:
        self.index: PrefixIndex[LiveSession] = PrefixIndex(page_tokens, self._drop)
        self._jobs = jobs
        self._wake = wake
        self._everyone = everyone
        self._receiving: set[LiveSession] = set()

    # ------------------------------------------------------------ on the event loop

    def page_nbytes(self, live: LiveSession) -> int:
        return self._cache_nbytes(live) + sum(self._states(live).values()) if self.index.page_tokens else 0

    def cached_tokens(self, caller: Caller, prefix_hashes: Sequence[int]) -> int:
        """How much of a text a new session of this caller would take over, of what it may share.

        States for a drafter are not looked at: a page without those that the session will need is read again.
        `prefix_hashes`: of the text after each 64th token, shortest first.
        """
        size = self.index.page_tokens
        if not size or size % NAMED_TOKENS or not prefix_hashes:
            return 0
        every = size // NAMED_TOKENS
        return size * self.index.count_named(self._owner(caller), prefix_hashes[every - 1 :: every])

    def adopt(self, live: LiveSession) -> bool:
        """Begins to give a session the kept pages of the text that it would read; False if there are none.

        While it is being given pages nothing more is begun.
        """
        if live in self._receiving:
            return True
        if not (pages := self._find(live)):
            return False
        self._receiving.add(live)
        live.turn.stepping = True
        session, tokens = live.session, len(pages) * self.index.page_tokens
        cached, text, version = session.cached, session.tokens, session.cache_version

        def give() -> None:  # on the inference thread
            given = False
            try:
                given = take_over(live.tensors, cached, pages)
            except Exception as error:  # noqa: BLE001 (whatever it raises ends only this session)
                self._jobs.post_loss(live, error)
            self._jobs.post(partial(end, given=given))

        def end(*, given: bool) -> None:
            if not given:  # it reads its text itself, and no other one may take these pages over
                self._discard(live, pages)
            self._receiving.remove(live)
            live.turn.stepping = False
            if given and not live.closed and session.on_adopted(tokens, text, version):
                log.info("prefix shared", session=live.number, tokens=tokens, more=tokens - cached)
            self._wake(live)

        self._jobs.run(give)
        return True

    def keep(self, live: LiveSession) -> None:
        """Keeps the pages that a forward has filled."""
        size, cached, held = self.index.page_tokens, live.session.cached_with_states, self.index.held(live)
        owner = self._owner(live.caller)
        if not size or cached // size <= len(held) or live.closed:
            return
        if held and held[0].owner != owner:
            return  # the conversation has moved to another client, who owns none of what it shares
        first, text = len(held), live.session.tokens[:cached]
        pages = self.index.extend(live, owner, text, self._cache_nbytes(live), self._states(live))

        def keep() -> None:  # on the inference thread
            try:
                keep_pages(live.tensors, first, pages)
            except Exception as error:  # noqa: BLE001 (as above)
                self._jobs.post(partial(self._discard, live, pages))
                self._jobs.post_loss(live, error)

        self._jobs.run(keep)

    def _find(self, live: LiveSession) -> Sequence[TextPage]:
        """Finds kept pages beyond what a session holds of its text, and reserves them for it; none: there are none.

        Its pages that no longer belong to its text are let go.
        """
        size, session = self.index.page_tokens, live.session
        if not size or live.closed:
            return ()
        self.index.let_go(live, session.cached // size)
        most = (len(session.tokens) - 1) // size * size  # the newest token is always fed
        if live.turn.stepping or most <= session.cached:
            return ()
        pages = self.index.find(self._owner(live.caller), session.tokens[:most], self._states(live))
        if len(pages) * size <= session.cached:
            return ()
        self.index.hold(live, pages)
        return pages

    def _discard(self, live: LiveSession, pages: Sequence[TextPage]) -> None:
        for page in pages:
            self.index.cut(page)
        self.index.let_go(live, live.session.cached // self.index.page_tokens)

    def _drop(self, pages: Sequence[TextPage]) -> None:
        self._jobs.run(partial(_let_go, pages))

    def _owner(self, caller: Caller) -> str:
        return "" if self._everyone else caller.owner

    def _states(self, live: LiveSession) -> dict[Hashable, int]:
        """The states that must be kept with a session's pages, and their bytes in a page."""
        source, size = live.drafting.source, self.index.page_tokens
        if source is None:
            return {}
        made = {plane: width for plane, width in live.drafting.widths.items() if source.layers_of(plane)}
        return {(source, plane): most_nbytes(width, size) for plane, width in made.items()}

    def _cache_nbytes(self, live: LiveSession) -> int:
        return live.tensors.cache.most_nbytes(self.index.page_tokens)


# ---------------------------------------------------------------- on the inference thread


def keep_pages(tensors: SessionTensors, first: int, pages: Sequence[TextPage]) -> None:
    """Keeps what a session has of its pages from number `first` on; it uses what is kept already in place of its own.

    That changes no bit: only targets whose rows do not depend on what they are computed with have pages to share.
    """
    cache, stores = _cache(tensors).pages, _stores(tensors)
    for place, page in enumerate(pages, first):
        if page.keys_values is None:
            page.keys_values = cache.full_page(place).hold()
        else:
            cache.replace_page(place, page.keys_values)
        for kind, store in stores.items():
            if kind in page.states:
                store.replace_page(place, page.states[kind])
            else:
                page.states[kind] = store.full_page(place).hold()


def take_over(tensors: SessionTensors, cached: int, pages: Sequence[TextPage]) -> bool:
    """Makes a session hold these pages, and nothing after them; False if they are not kept, and nothing was changed.

    `cached`: tokens of its text that the session holds itself; rows of its planes beyond are void.
    """
    stores = _stores(tensors)
    kept = [page.keys_values for page in pages if page.keys_values is not None and page.states.keys() >= stores.keys()]
    if len(kept) < len(pages):
        log.error("shared pages are missing: they are read again", missing=len(pages) - len(kept))
        return False
    _cache(tensors).adopt(kept)
    for store in tensors.planes.values():
        store.crop(cached)
    for kind, store in stores.items():
        store.adopt([page.states[kind] for page in pages])
    return True


def _let_go(pages: Sequence[TextPage]) -> None:
    for page in pages:
        for each in page.states.values() if page.keys_values is None else (page.keys_values, *page.states.values()):
            each.let_go()
        page.keys_values, page.states = None, {}


def _stores(tensors: SessionTensors) -> dict[tuple[MemorySource, KeptPlane], RowStore]:
    """The rows of a session that only a forward makes."""
    source = tensors.source
    return {(source, plane): tensors.planes[plane] for plane in tensors.states} if source is not None else {}


def _cache(tensors: SessionTensors) -> KernelCache:
    if not isinstance(tensors.cache, KernelCache):
        raise InternalError("Only the kernels' caches have pages to share.")
    return tensors.cache
