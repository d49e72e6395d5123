"""What an answer shows of an incident."""

from dataclasses import dataclass
from enum import StrEnum


class IncidentKind(StrEnum):
    CUT = "cut"  # everything sent is lost for a time
    RESET = "reset"  # every connection ends with a reset
    KILL = "kill"  # the server dies, and another one takes its place
    OUTAGE = "recorded outage"  # nothing comes for a time, as on a link that was recorded


@dataclass(frozen=True, slots=True)
class Incident:
    """What an answer shows of an incident.

    Args:
        stall_ms: the longest wait for new text that lasted into the incident or began in it; None: all of the text
            was already on the screen.
        resume_ms: from when link and server were there again to the next verdict; None: the next incident came first,
            or nothing was left to decide.
        whole: whether the answer's final text is that of an undisturbed one, and the screen showed it, token for token.
    """

    kind: IncidentKind
    seconds: float  # until the link or the server was there again
    stall_ms: float | None
    resume_ms: float | None
    alone: bool  # whether standalone text was written from the incident until then
    whole: bool
