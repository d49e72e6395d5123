"""How late a server's signs of life come, and so how long to wait for one. Pure.

State: how much longer than the mean round trip beats take. As for a TCP retransmission timer (RFC 6298), what is waited
for is the mean and four deviations; but only late answers count, and they are forgotten more slowly than they are
learned: a busy machine stops its programs now and then, not each second.
"""

from __future__ import annotations

LEARN_WEIGHT = 1 / 2  # of a later answer (the RFC: 1/4): what is waited for then covers one twice as late
FORGET_WEIGHT = 1 / 32  # of an earlier one: with a beat a second, half is forgotten after 22 s
DEVIATIONS = 4.0
MOST_LATE_MS = 1000.0  # what comes later was held up by an outage; those are to be noticed, not to be got used to


class BeatDelays:
    """Learns how late beats come back."""

    def __init__(self) -> None:
        self._deviation_ms = 0.0

    def add(self, late_ms: float) -> None:
        """A beat came back, so much later than the mean round trip; negative: earlier."""
        late_ms = min(max(late_ms, 0.0), MOST_LATE_MS)
        weight = LEARN_WEIGHT if late_ms > self._deviation_ms else FORGET_WEIGHT
        self._deviation_ms += weight * (late_ms - self._deviation_ms)

    @property
    def late_ms(self) -> float:
        """How much later than the mean round trip a beat may well be; at most `MOST_LATE_MS`."""
        return min(DEVIATIONS * self._deviation_ms, MOST_LATE_MS)
