"""What goes wrong in `moa-bench cut`: when, what and for how long; and what an answer that met it shows.

Pure: plans come from a seed, and the figures of an incident from times that others took.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

# A tunnel or a lift is longer than a client's patience (seconds), a hand-over shorter: both sides of it are met.
SHORTEST_CUT_S = 0.1
LONGEST_CUT_S = 3.0
# Of an answer's time: not before its first token could come, and not when hardly any token is left.
EARLIEST, LATEST = 0.0, 0.8


class Kind(StrEnum):
    CUT = "cut"  # everything sent is lost for a time
    RESET = "reset"  # every connection ends with a reset
    KILL = "kill"  # the server dies and is started again


@dataclass(frozen=True, slots=True)
class Planned:
    """An incident to come.

    Args:
        at: when, as a share of the time that an undisturbed answer takes.
        seconds: how long a cut lasts.
        prompt: number of the question that it meets.
    """

    kind: Kind
    at: float
    seconds: float
    prompt: int


@dataclass(frozen=True, slots=True)
class Incident:
    """One that happened.

    Args:
        seconds: until the link or the server was there again.
        stall_ms: the longest wait for a token that began before, or lasted into, the time after the incident.
        resume_ms: from when link and server were there again to the next token.
        attempts: streams that the answer took, the first one included.
        equal: whether the text is that of an undisturbed answer, token for token.
    """

    kind: Kind
    seconds: float
    stall_ms: float
    resume_ms: float
    attempts: int
    equal: bool


def plan_incidents(cuts: int, resets: int, kills: int, prompts: int, seed: int) -> list[Planned]:
    """That many of each kind in random order, at random times, for random lengths."""
    draw = random.Random(seed)
    kinds = [Kind.CUT] * cuts + [Kind.RESET] * resets + [Kind.KILL] * kills
    draw.shuffle(kinds)
    return [
        Planned(
            kind,
            at=draw.uniform(EARLIEST, LATEST),
            seconds=draw.uniform(SHORTEST_CUT_S, LONGEST_CUT_S) if kind is Kind.CUT else 0.0,
            prompt=number % prompts,
        )
        for number, kind in enumerate(kinds)
    ]


def judge_incident(
    kind: Kind, struck_s: float, healed_s: float, arrivals_s: Sequence[float], *, attempts: int, equal: bool
) -> Incident | None:
    """What an answer's arrivals say about an incident; None if the answer had ended before it.

    Args:
        struck_s, healed_s: when it began, and when link and server were there again.
        arrivals_s: of the answer's tokens, on the same clock, the time of the question before them.
    """
    if arrivals_s[-1] <= struck_s:
        return None
    waits = [later - earlier for earlier, later in pairwise(arrivals_s) if later > struck_s]
    after = [arrival for arrival in arrivals_s if arrival > healed_s]
    return Incident(
        kind,
        round(healed_s - struck_s, 3),
        stall_ms=round(max(waits) * 1e3, 1),
        resume_ms=round((after[0] - healed_s) * 1e3, 1) if after else 0.0,
        attempts=attempts,
        equal=equal,
    )
