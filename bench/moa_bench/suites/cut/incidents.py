"""What goes wrong: when, what and for how long; and what an answer that met it shows. Pure."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from moa_bench.harness.split_client import Moment
from moa_bench.report import facts_line, table
from moa_bench.spread import Spread

# Without link or server: shorter than a client's timer (a hand-over) to much longer (a lift), as many in each octave.
SHORTEST_S = 0.06
LONGEST_S = 3.0
# From the answer's begin, or from when the incident before was over: the prompt is being read, text comes, is verified.
# Longer where an answer takes longer, so that one is over before the next begins.
LATEST_S = 1.5


class IncidentKind(StrEnum):
    CUT = "cut"  # everything sent is lost for a time
    RESET = "reset"  # every connection ends with a reset
    KILL = "kill"  # the server dies, and another one is started at its address


@dataclass(frozen=True, slots=True)
class Planned:
    kind: IncidentKind
    after_s: float  # from the answer's begin or the end of the incident before
    seconds: float  # how long a cut lasts


@dataclass(frozen=True, slots=True)
class InjectedIncident:
    """An incident that happened, until link and server were there again; times are seconds since the question."""

    kind: IncidentKind
    at_s: float
    healed_s: float
    next_s: float = math.inf  # when the next one began; infinite: there was none


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


def plan_incidents(cuts: int, resets: int, kills: int, seed: int, answer_s: float = 0.0) -> list[Planned]:
    """That many of each kind in random order, at random times, for random lengths.

    An undisturbed answer takes `answer_s`.
    """
    draw = random.Random(seed)
    kinds = [IncidentKind.CUT] * cuts + [IncidentKind.RESET] * resets + [IncidentKind.KILL] * kills
    draw.shuffle(kinds)
    plan = []
    for kind in kinds:
        after_s, seconds = draw.uniform(0.0, max(LATEST_S, answer_s)), SHORTEST_S
        seconds *= (LONGEST_S / SHORTEST_S) ** draw.random()
        plan.append(Planned(kind, after_s, seconds if kind is IncidentKind.CUT else 0.0))
    return plan


def judge_incident(
    struck: InjectedIncident, moments: Sequence[Moment], verdicts_s: Sequence[float], *, answer_tokens: int, whole: bool
) -> Incident | None:
    """What a screen says about an incident, by its moments and when verdicts came; None if all of the answer had been
    decided before it.
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


def render(result: Mapping[str, Any]) -> str:
    incidents, effort = result["incidents"], result["effort"]
    note = (
        f"{result['answers']} answers of {effort.answer_tokens} tokens to {effort.asked} questions, greedy, "
        f"{result['level']}, over {result['link']}. Median (quartiles).\n"
    )
    head = ["incident", "met", "texts whole", "wrote standalone text", "away, ms", "stall, ms", "95 %", "longest"]
    rows = []
    for kind in dict.fromkeys(each.kind for each in incidents):
        met = [each for each in incidents if each.kind is kind]
        stalls_ms = [each.stall_ms for each in met if each.stall_ms is not None]
        resumes_ms = [each.resume_ms for each in met if each.resume_ms is not None]
        counts = len(met), sum(each.whole for each in met), sum(each.alone for each in met)
        away = f"{Spread.of([1e3 * each.seconds for each in met]):0}"
        rows.append([kind.value, *counts, away, *_spread(stalls_ms), *_spread(resumes_ms)])
    return "\n".join([facts_line(result), note, table([*head, "to resume, ms", "95 %", "longest"], rows)])


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    """Median with quartiles, the value below which 95 % are, and the most."""
    if not values:
        return "none", "", ""
    most = sorted(values)
    return f"{Spread.of(values):0}", f"{most[min(len(most) - 1, int(0.95 * len(most)))]:.0f}", f"{most[-1]:.0f}"
