"""The virtual sender's congestion window and timers: CUBIC (RFC 9438) and the retransmission time-out (RFC 6298).

Pure. Numbers are Linux's: window of 10 segments, times 0.7 at a loss, RTO = SRTT + max(200 ms, 4 RTTVAR).
"""

from __future__ import annotations

import math

MSS = 1448  # payload of a segment of 1,500 bytes: 20 of IP, 20 of TCP, 12 of timestamps
HEADER = 52
INITIAL_SEGMENTS = 10.0  # RFC 6928
MAX_SEGMENTS = 2 * 1024 * 1024 / MSS  # half of Linux's largest send buffer (tcp_wmem, 4 MiB): the rest is overhead
BETA = 0.7
CUBIC_C = 0.4
MIN_VARIANCE_S = 0.2  # tcp_rto_min
HYSTART_SAMPLES = 8
HYSTART_LOW_SEGMENTS = 16.0


class Window:
    """A congestion window; owns its size and threshold (in segments), the smoothed round trip and the back-off."""

    def __init__(self, rtt_s: float) -> None:
        self.segments = INITIAL_SEGMENTS
        self.threshold = math.inf
        self.srtt_s = rtt_s
        self.variance_s = rtt_s / 2.0
        self.backoff = 0
        self._peak = 0.0  # window at the last loss
        self._epoch: float | None = None  # start of the present cubic growth
        self._start = INITIAL_SEGMENTS  # window at that start
        self._floor_s = rtt_s  # least round trip seen, for HyStart
        self._round_end = 0.0
        self._round: list[float] = []

    @property
    def rto_s(self) -> float:
        """Retransmission time-out, with back-off."""
        # 2 minutes is Linux's TCP_RTO_MAX.
        return min(120.0, (self.srtt_s + max(MIN_VARIANCE_S, 4.0 * self.variance_s)) * 2.0**self.backoff)

    @property
    def bytes(self) -> float:
        """Payload that may be in flight."""
        return self.segments * MSS

    def on_ack(self, nbytes: int, rtt_s: float, t: float, *, limited: bool) -> None:
        """An acknowledgement of `nbytes`; the window grows only where it was the limit."""
        self.variance_s += (abs(self.srtt_s - rtt_s) - self.variance_s) / 4.0
        self.srtt_s += (rtt_s - self.srtt_s) / 8.0
        self.backoff = 0
        if self.segments < self.threshold:
            self._hystart(rtt_s, t)
        if not limited:
            return
        acked = nbytes / MSS
        if self.segments >= MAX_SEGMENTS:
            return
        if self.segments < self.threshold:
            self.segments += acked
            return
        if self._epoch is None:
            self._epoch = t
            self._peak = max(self._peak, self.segments)
            self._start = self.segments
        elapsed = t - self._epoch
        k = ((self._peak - self._start) / CUBIC_C) ** (1.0 / 3.0)
        target = CUBIC_C * (elapsed + self.srtt_s - k) ** 3 + self._peak
        # Reno's growth for the same loss response: where it is faster, cubic follows it.
        reno = self._start + 3.0 * (1.0 - BETA) / (1.0 + BETA) * elapsed / max(self.srtt_s, 1e-4)
        target = min(max(target, reno), 1.5 * self.segments)
        if target > self.segments:
            self.segments += (target - self.segments) / self.segments * acked

    def _hystart(self, rtt_s: float, t: float) -> None:
        """Leaves slow start when the least round trip of a round's first samples has risen (Linux's delay rule)."""
        self._floor_s = min(self._floor_s, rtt_s)
        if t > self._round_end:
            self._round_end, self._round = t + self.srtt_s, []
        if len(self._round) < HYSTART_SAMPLES:
            self._round.append(rtt_s)
        elif self.segments >= HYSTART_LOW_SEGMENTS:
            allowance = min(max(self._floor_s / 8.0, 0.004), 0.016)
            if min(self._round) > self._floor_s + allowance:
                self.threshold = self.segments

    def on_loss(self) -> None:
        """The first loss of an episode."""
        self._peak = self.segments if self.segments >= self._peak else self.segments * (1.0 + BETA) / 2.0
        self.segments = max(2.0, self.segments * BETA)
        self.threshold = self.segments
        self._epoch = None

    def on_timeout(self) -> None:
        """A retransmission time-out: everything in flight counts as lost, and slow start begins again."""
        if self.backoff == 0:
            self.on_loss()
        self.segments = 1.0
        self.backoff += 1

    def on_idle(self, idle_s: float) -> None:
        """After a pause longer than the time-out the window halves for each one, down to the initial window."""
        pause = idle_s
        while pause > self.rto_s and self.segments > INITIAL_SEGMENTS:
            self.threshold = max(self.threshold, self.segments * 0.75) if self.threshold < math.inf else math.inf
            self.segments = max(INITIAL_SEGMENTS, self.segments / 2.0)
            pause -= self.rto_s
            self._epoch = None
