"""Ends the sessions that an error has hit, and no other."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from moa_shared.errors import InternalError, MoaError

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.observer import Observer

log = structlog.get_logger()


class Losses:
    """Ends sessions that have failed.

    Args:
        on_lost: called with each.
        observer: learns of each.
    """

    def __init__(self, on_lost: Callable[[LiveSession], None], observer: Observer) -> None:
        self._on_lost = on_lost
        self._observer = observer

    def lose(self, live: LiveSession, error: Exception) -> None:
        """Ends a session; its client learns why, the log has the details."""
        if live.closed:
            return
        self._observer.on_lost()
        log.error("session failed", session=live.number, exc_info=error)
        listener = live.stream.listener
        live.account.end_trace("failed", type(error).__name__)
        live.close()
        if listener is not None:
            listener.on_failure(public_error(error))
        self._on_lost(live)


def public_error(error: Exception) -> MoaError:
    """The error that the client sees; details stay in the log."""
    if isinstance(error, MoaError):
        return error
    public = InternalError(f"The server failed in this session ({type(error).__name__}).")
    public.__cause__ = error
    return public
