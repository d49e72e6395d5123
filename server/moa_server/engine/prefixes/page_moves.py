"""Moves shared pages: a session's filled pages are kept, and kept pages are given to a session that would read them.

The loop half asks `PrefixSharing` what to move, the inference thread's half moves it. State: the sessions that are
being given pages. Invariant: meanwhile a session counts as stepping and is given no others; it steps again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.prefixes.page_store import PagesNotKept
from moa_server.engine.prefixes.sharing import Adoption, FilledPages, PrefixSharing
from moa_server.engine.thread.session_jobs import SessionJobs

log = structlog.get_logger()


class PageMoves:
    """Moves the pages of sessions that share text.

    Args:
        sharing: None: sessions share nothing.
        wake: has a session step again.
    """

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
        live.turn.occupy()
        self._jobs.run(partial(self._give, self._sharing, adoption))
        return True

    def keep(self, live: LiveSession) -> None:
        """Keeps the pages that a forward has filled, before the session's next one."""
        if self._sharing is not None and not live.closed and (filled := self._sharing.on_read(live)) is not None:
            self._jobs.run(partial(self._keep, self._sharing, filled))

    def drop(self, numbers: Sequence[int]) -> None:
        """Frees pages that no session holds."""
        if self._sharing is not None:
            self._jobs.run(partial(self._sharing.drop, numbers))

    def _on_given(self, adoption: Adoption) -> None:
        live, before = adoption.live, adoption.cached
        self._receiving.remove(live)
        live.turn.vacate()
        if not live.closed and adoption.commit():
            log.info("prefix shared", session=live.number, tokens=adoption.tokens, more=adoption.tokens - before)
        self._wake(live)

    def _on_not_given(self, sharing: PrefixSharing, adoption: Adoption) -> None:
        """The session reads its text itself, and no other one may take these pages over."""
        sharing.discard(adoption)
        self._receiving.remove(adoption.live)
        adoption.live.turn.vacate()
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
