"""Whether a server has started, is ready and is alive: three questions that are often taken for one. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """The answer to one of the questions, and why."""

    holds: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Signs:
    """What the answers follow from.

    Args:
        started: the model is loaded and the port open.
        draining: the server is going away.
        silent_seconds: since the event loop last turned; `stuck_seconds`: as of `Lifecycle`.
        hang_seconds: longer than this, either hangs.
    """

    started: bool
    draining: bool
    silent_seconds: float
    stuck_seconds: float
    hang_seconds: float


def startup(signs: Signs) -> Condition:
    """Whether the model is loaded: until then the other two say little."""
    return Condition(True, "started") if signs.started else Condition(False, "the model is being loaded")


def liveness(signs: Signs) -> Condition:
    """Whether a restart would help."""
    if signs.silent_seconds > signs.hang_seconds:
        return Condition(False, f"the event loop has not turned for {signs.silent_seconds:.0f} s")
    if signs.stuck_seconds > signs.hang_seconds:
        return Condition(False, f"a forward has been stuck for {signs.stuck_seconds:.0f} s")
    return Condition(True, "alive")


def readiness(signs: Signs) -> Condition:
    """Whether new conversations are taken."""
    if not signs.started:
        return startup(signs)
    if signs.draining:
        return Condition(False, "draining: running answers end, no new ones begin")
    alive = liveness(signs)
    return Condition(True, "ready") if alive.holds else alive
