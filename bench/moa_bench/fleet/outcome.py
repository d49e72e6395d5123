"""What the clients of a fleet met: whole texts, stalls, resumes with and without keys and values, balance. Pure.

Times are seconds of one monotonic clock; those of a timeline count from the scenario's begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from moa_bench.fleet.asked import Asked, Opening

BIN_S = 0.5  # of a timeline
STALL_S = 1.0  # a longer wait is marked in it


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that was done to the fleet.

    Args:
        what: "kill", "drain", "join", "leave", "cut".
        down_s, up_s: when it began, and when everybody could be called again.
        address: of the replica that it was done to; empty: to the links.
    """

    what: str
    down_s: float
    up_s: float
    address: str = ""


@dataclass(frozen=True, slots=True)
class Resumes:
    """Streams that resumed an answer.

    Args:
        count: of them; `text_median`: tokens that the conversation had.
        open_median_s: from Open to Opened; `median_s`, `longest_s`: from Open until text came.
    """

    count: int
    text_median: float
    open_median_s: float
    median_s: float
    longest_s: float

    @classmethod
    def of(cls, openings: Sequence[tuple[Opening, float | None]]) -> Resumes:
        """Of streams and how long text took on each; None: another stream came first."""
        took_s = [each for _, each in openings if each is not None]
        return cls(
            len(openings),
            _median(opening.text for opening, _ in openings),
            _median(opening.took_s for opening, _ in openings),
            _median(took_s),
            round(max(took_s, default=0.0), 3),
        )


@dataclass(frozen=True, slots=True)
class Share:
    """A replica's part: streams that it opened, and tokens that came from it."""

    address: str
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """A scenario as its clients saw it.

    Args:
        tokens_per_s: of each replica, in bins of `bin_s`.
        stalls: of clients: number, from when to when.
        incidents: with times from the begin.
    """

    bin_s: float
    tokens_per_s: dict[str, list[float]]
    stalls: list[tuple[int, float, float]]
    incidents: list[Incident]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the clients met.

    Args:
        seconds: from the first question to the last answer.
        answers: in all; `through`: of these, those under way during an incident.
        lost: that ended with an error, or not at all; `different`: whose text is another than undisturbed.
        stall_median_s, stall_longest_s: of the longest wait that each client had in each incident.
        warm, cold: resumes at a replica that had the text's keys and values, and at one that had to read it.
        first_text_s: median of new questions under the same load: their prompts are read too.
        incidents: as they were done; `failures`: sentences of lost answers, each once.
    """

    seconds: float
    answers: int
    through: int
    lost: int
    different: int
    stall_median_s: float
    stall_longest_s: float
    warm: Resumes
    cold: Resumes
    first_text_s: float
    shares: tuple[Share, ...]
    incidents: tuple[Incident, ...]
    failures: tuple[str, ...]
    timeline: Timeline

    @classmethod
    def of(
        cls,
        asked: Sequence[Asked],
        texts: Sequence[Sequence[int]],
        incidents: Sequence[Incident],
        addresses: Sequence[str],
    ) -> Outcome:
        """Of these answers.

        Args:
            texts: what each would be undisturbed.
            addresses: of the replicas, in the order in which they are shown.
        """
        stalls: dict[tuple[int, int], float] = {}
        for each in asked:
            for number, incident in enumerate(incidents):
                if (stall_s := each.stall_s(incident)) > 0:
                    key = each.client, number
                    stalls[key] = max(stalls.get(key, 0.0), stall_s)
        ended = [each for each in asked if each.ended_s is not None]
        whole = [each for each in ended if not each.failure]
        resumes = [(opening, each.first_text_s(opening)) for each in asked for opening in each.openings[1:]]
        firsts = [each.first_text_s(each.openings[0]) for each in asked if each.openings]
        began_s = min((each.asked_s for each in asked), default=0.0)
        return cls(
            round(max((each.ended_s or began_s for each in ended), default=began_s) - began_s, 1),
            len(asked),
            sum(any(each.meets(incident) for incident in incidents) for each in asked),
            len(asked) - len(whole),
            sum(each.tokens != tuple(texts[each.text]) for each in whole),
            _median(stalls.values()),
            round(max(stalls.values(), default=0.0), 3),
            Resumes.of([each for each in resumes if each[0].has_kv]),
            Resumes.of([each for each in resumes if not each[0].has_kv]),
            _median(each for each in firsts if each is not None),
            shares_of(asked, addresses),
            tuple(incidents),
            tuple(sorted({each.failure for each in asked if each.failure})),
            timeline_of(asked, incidents, addresses, began_s),
        )


def shares_of(asked: Sequence[Asked], addresses: Sequence[str], since_s: float = 0.0) -> tuple[Share, ...]:
    """Each replica's part of what came since then."""
    streams = Counter(
        opening.address for each in asked for opening in each.openings if opening.at_s - opening.took_s >= since_s
    )
    tokens: Counter[str] = Counter()
    for each in asked:
        for at_s, address, count in each.arrivals_by_address():
            tokens[address] += count if at_s >= since_s else 0
    return tuple(Share(address, streams[address], tokens[address]) for address in addresses)


def timeline_of(
    asked: Sequence[Asked], incidents: Sequence[Incident], addresses: Sequence[str], began_s: float
) -> Timeline:
    """When text came, and when it did not."""
    last_s = max((at_s for each in asked for at_s in each.arrivals_s), default=began_s)
    bins = 1 + int((last_s - began_s) / BIN_S)
    counts = {address: [0] * bins for address in addresses}
    for each in asked:
        for at_s, address, count in each.arrivals_by_address():
            if address in counts:
                counts[address][int((at_s - began_s) / BIN_S)] += count
    stalls = [
        (each.client, round(before - began_s, 3), round(after - began_s, 3))
        for each in asked
        for before, after in each.waits
        if after - before >= STALL_S
    ]
    return Timeline(
        BIN_S,
        {address: [count / BIN_S for count in row] for address, row in counts.items()},
        stalls,
        [
            Incident(each.what, round(each.down_s - began_s, 3), round(each.up_s - began_s, 3), each.address)
            for each in incidents
        ],
    )


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return round(median(found), 3) if found else 0.0
