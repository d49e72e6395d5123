"""When pages of text that sessions share change hands, with their keys, values and states.

Full pages are kept as they fill, and a session that would read kept text takes it over. The event loop decides, and the
inference thread moves what is in the pages, in the order of the decisions. Invariants: pages change hands only between
forwards of the session; what a session shares is counted by the index, once for all. With recurrent states, text is
taken over only up to a page that has a checkpoint of them at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import structlog
from moa_kernels import PAGE_ROWS
from moa_shared.errors import InternalError
from moa_shared.protocol.prefix_hash import NAMED_TOKENS

from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import MemorySource
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import LiveSession
from moa_server.engine.prefix_index import PrefixIndex, TextPage
from moa_server.engine.stepper import SessionTensors
from moa_server.session.memory_feed import KeptPlane, RowStore, most_nbytes
from moa_server.verifier.kernel_target import KernelCache

log = structlog.get_logger()


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
        return _cache(live.tensors).page_nbytes + sum(self._states(live).values()) if self.index.page_tokens else 0

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
        cache, checkpoints = _cache(live.tensors), live.session.states.checkpoints
        nbytes = cache.checkpoint_nbytes
        pages = self.index.extend(
            live, owner, text, cache.page_nbytes, self._states(live), (checkpoints, nbytes) if nbytes else None
        )
        thinned = self.index.drop_checkpoints(live, checkpoints) if nbytes else ()

        def keep() -> None:  # on the inference thread
            for page in thinned:
                page.let_go_of_checkpoint()
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
        session.states.want_before(len(pages) * size)  # where this text departs from kept ones, others may do so too
        while pages and pages[-1].checkpoint_nbytes is None:
            pages.pop()
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


# ---------------------------------------------------------------- on the inference thread


def keep_pages(tensors: SessionTensors, first: int, pages: Sequence[TextPage]) -> None:
    """Keeps what a session has of its pages from number `first` on; it uses what is kept already in place of its own.

    That changes no bit: only targets whose rows do not depend on what they are computed with have pages to share.
    """
    cache, stores = _cache(tensors).pages, _stores(tensors)
    snapshots = {each.rows: each for each in cache.states.snapshots}
    for place, page in enumerate(pages, first):
        if page.checkpoint_nbytes and page.checkpoint is None:
            own = snapshots.get((place + 1) * PAGE_ROWS)
            page.checkpoint = own.hold() if own is not None else None
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
    stores, snapshot = _stores(tensors), pages[-1].checkpoint
    kept = [page.keys_values for page in pages if page.keys_values is not None and page.states.keys() >= stores.keys()]
    if len(kept) < len(pages) or (pages[-1].checkpoint_nbytes and snapshot is None):
        log.error("shared pages are missing: they are read again", missing=len(pages) - len(kept))
        return False
    _cache(tensors).adopt(kept, snapshot)
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
        page.let_go_of_checkpoint()


def _stores(tensors: SessionTensors) -> dict[tuple[MemorySource, KeptPlane], RowStore]:
    """The rows of a session that only a forward makes."""
    source = tensors.source
    return {(source, plane): tensors.planes[plane] for plane in tensors.states} if source is not None else {}


def _cache(tensors: SessionTensors) -> KernelCache:
    if not isinstance(tensors.cache, KernelCache):
        raise InternalError("Only the kernels' caches have pages to share.")
    return tensors.cache
