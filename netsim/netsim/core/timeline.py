"""What happens to the link at given times: outage, hand-over, connections ended or refused, another profile.

An event is a value; `parse_event` reads the short form that the command line and traces use:
KIND[:SECONDS][:DIRECTION], `change:PROFILE[:RAMP_SECONDS]`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from netsim.core.link import Direction
from netsim.errors import UsageError


class EventKind(StrEnum):
    """`blackhole` loses packets, `hold` keeps them; `reset`, `fin` and `refuse` act on connections."""

    BLACKHOLE = "blackhole"
    HOLD = "hold"
    RESET = "reset"
    FIN = "fin"
    REFUSE = "refuse"
    CHANGE = "change"


LASTING = frozenset({EventKind.BLACKHOLE, EventKind.HOLD, EventKind.REFUSE})
DIRECTED = frozenset({EventKind.BLACKHOLE, EventKind.HOLD})
BOTH = (Direction.UP, Direction.DOWN)


@dataclass(frozen=True, slots=True)
class Event:
    """One event at `at_s` of the run. An infinite `duration_s` lasts until the link is healed."""

    at_s: float
    kind: EventKind
    duration_s: float = 0.0  # of a lasting event; for a change, its ramp
    directions: tuple[Direction, ...] = BOTH
    profile: str | None = None

    @property
    def end_s(self) -> float:
        """When a lasting event is over."""
        return self.at_s + self.duration_s


def parse_directions(text: str) -> tuple[Direction, ...]:
    """`up`, `down` or `both`; raises UsageError."""
    if text == "both":
        return BOTH
    try:
        return (Direction(text),)
    except ValueError:
        raise UsageError(f"{text!r} is not a direction.", hint="Directions are up, down and both.") from None


def parse_event(at_s: float, text: str) -> Event:
    """Reads the short form of an event; raises UsageError."""
    name, *rest = (part.strip() for part in text.strip().split(":"))
    try:
        kind = EventKind(name)
    except ValueError:
        known = ", ".join(EventKind)
        raise UsageError(
            f"{name!r} is not an event.", hint=f"Events are {known}; for example blackhole:2.5:up."
        ) from None
    if kind is EventKind.CHANGE:
        if not rest or len(rest) > 2:
            raise UsageError(f"{text!r} is incomplete.", hint="Write change:PROFILE or change:PROFILE:RAMP_SECONDS.")
        return Event(at_s, kind, _seconds(rest[1]) if len(rest) == 2 else 0.0, profile=rest[0])
    allowed = (kind in LASTING) + (kind in DIRECTED)
    if len(rest) > allowed or (kind in LASTING and not rest):
        form = f"{kind}:SECONDS" + (":DIRECTION" if kind in DIRECTED else "") if kind in LASTING else str(kind)
        raise UsageError(
            f"{text!r} is not of the form {form}.", hint="DIRECTION is up, down or both, and may be left out."
        )
    duration = _seconds(rest[0]) if rest else 0.0
    return Event(at_s, kind, duration, parse_directions(rest[1]) if len(rest) == 2 else BOTH)


def parse_timed_event(text: str) -> Event:
    """Reads `SECONDS:EVENT`, the form of the command line."""
    at, _, event = text.partition(":")
    if not event:
        raise UsageError(f"{text!r} names no event.", hint="Write SECONDS:EVENT, for example 12:blackhole:3.")
    return parse_event(_seconds(at), event)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise UsageError(f"{text!r} is not a number of seconds.", hint="Give a number of at least 0.")
    return value
