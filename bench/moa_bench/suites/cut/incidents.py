"""What goes wrong in `moa-bench cut`: when, what and for how long; and what an answer that met it shows.

Pure: plans come from a seed, and the figures of an incident from times that others took.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from moa_bench.harness.shown_text import Moment
from moa_bench.suites.cut.incident import Incident, IncidentKind

# Without link or server: shorter than a client's timer (a hand-over) to much longer (a lift), as many in each octave.
SHORTEST_S = 0.06
LONGEST_S = 3.0
# From the answer's begin, or from when the incident before was over: the prompt is being read, text comes, is verified.
# Longer where an answer takes longer, so that one is over before the next begins.
LATEST_S = 1.5


@dataclass(frozen=True, slots=True)
class Planned:
    """An incident to come."""

    kind: IncidentKind
    after_s: float  # from the answer's begin or the end of the incident before
    seconds: float  # how long a cut lasts, or the shortest time without a server


@dataclass(frozen=True, slots=True)
class InjectedIncident:
    """An incident that happened; times are seconds since the question.

    Args:
        at_s, healed_s: when it began, and when link and server were there again.
    """

    kind: IncidentKind
    at_s: float
    healed_s: float
    next_s: float = math.inf  # when the next one began; infinite: there was none


def plan_incidents(cuts: int, resets: int, kills: int, seed: int, answer_s: float = 0.0) -> list[Planned]:
    """That many of each kind in random order, at random times, for random lengths.

    Args:
        answer_s: how long an undisturbed answer takes.
    """
    draw = random.Random(seed)
    kinds = [IncidentKind.CUT] * cuts + [IncidentKind.RESET] * resets + [IncidentKind.KILL] * kills
    draw.shuffle(kinds)
    return [
        Planned(
            kind,
            draw.uniform(0.0, max(LATEST_S, answer_s)),
            0.0 if kind is IncidentKind.RESET else SHORTEST_S * (LONGEST_S / SHORTEST_S) ** draw.random(),
        )
        for kind in kinds
    ]


def judge_incident(
    struck: InjectedIncident, moments: Sequence[Moment], verdicts_s: Sequence[float], *, answer_tokens: int, whole: bool
) -> Incident | None:
    """What a screen says about an incident; None if all of the answer had been decided before it.

    Args:
        moments: of the answer, in order.
        verdicts_s: when verdicts came.
        answer_tokens: of the final text.
    """
    if not any(at_s > struck.at_s for at_s in verdicts_s):
        return None
    resumed_s = next((at_s for at_s in verdicts_s if at_s > struck.healed_s), math.inf)
    over_s = min(resumed_s, struck.next_s)
    waits = []
    since_s, length = 0.0, 0
    for moment in moments:
        if moment.at_s > struck.at_s and since_s < over_s and length < answer_tokens and moment.is_new:
            waits.append(min(moment.at_s, struck.next_s) - since_s)
        since_s, length = moment.at_s, moment.length
    return Incident(
        struck.kind,
        round(struck.healed_s - struck.at_s, 3),
        round(max(waits) * 1e3, 1) if waits else None,
        round((resumed_s - struck.healed_s) * 1e3, 1) if resumed_s < struck.next_s else None,
        any(moment.length > moment.committed for moment in moments if struck.at_s < moment.at_s <= over_s),
        whole,
    )
