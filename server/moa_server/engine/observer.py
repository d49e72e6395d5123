"""What an observer of the server learns: a few coarse events, a handful for each forward.

Called on the event loop. Invariants: an observer never waits and never raises; no text and no token is told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps

import structlog
from moa_shared.protocol.finish_rule import Finish

from moa_server.engine.schedule import Rows

log = structlog.get_logger()


class Resume(StrEnum):
    CACHED = "cached"  # its session, with keys and values
    READ_AGAIN = "read_again"  # its session, without
    TAKEN_OVER = "taken_over"  # its session, which another stream still had
    UNKNOWN = "unknown"  # none: it has expired, or is another server's


class FrameBytes(StrEnum):
    VERDICTS = "verdicts"  # and other small frames of the server
    MEMORY = "memory"
    STATE = "state"
    DRAFTS = "drafts"
    REQUESTS = "requests"  # and other frames of the client


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """A step of one answer.

    Args:
        drafted, accepted: nodes of the device; `own_drafted`, `own_accepted`: those that only the server guessed.
        stale: nodes of the device that came too late since the step before.
        runs_ahead: it verified nothing of a device that drafts.
    """

    tokens: int
    drafted: int
    accepted: int
    own_drafted: int
    own_accepted: int
    stale: int
    runs_ahead: bool


class Observer:
    """A no-op observer; subclasses override events. What an override raises is logged and goes no further."""

    def __init_subclass__(cls) -> None:
        for name in vars(Observer).keys() & vars(cls).keys():
            if name.startswith("on_"):
                setattr(cls, name, _harmless(vars(cls)[name]))

    def on_planned(self, waits: Sequence[float]) -> None:
        """A forward begins, for sessions that have waited so many seconds."""

    def on_forward(self, rows: Rows, step_ms: float, drafting_ms: float) -> None:
        """A forward has ended; `drafting_ms`: how long the server drafted before it."""

    def on_step(self, step: AnswerStep) -> None:
        """A forward has continued an answer."""

    def on_finish(self, finish: Finish) -> None:
        """An answer has ended."""

    def on_lost(self) -> None:
        """An error has ended a session."""

    def on_call(self, method: str) -> None:
        """A call has begun."""

    def on_refusal(self, code: str) -> None:
        """A call has ended with an error of this code."""

    def on_resume(self, kind: Resume) -> None:
        """A client has come back."""

    def on_sent(self, kind: FrameBytes, count: int) -> None:
        """So many bytes of frames were written."""

    def on_received(self, kind: FrameBytes, count: int) -> None:
        """So many bytes of frames were read."""


def _harmless(event: Callable[..., None]) -> Callable[..., None]:
    """An event whose defects cost no call and no answer; the first one is logged, for it may come with each forward."""
    has_told = False

    @wraps(event)
    def run(*args: object) -> None:
        nonlocal has_told
        try:
            event(*args)
        except Exception:
            if not has_told:
                has_told = True
                log.exception("observing failed", seen=event.__name__)

    return run
