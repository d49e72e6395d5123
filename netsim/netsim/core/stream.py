"""The virtual sender's congestion window and timers: CUBIC (RFC 9438) and the retransmission time-out (RFC 6298).

Pure. Numbers are Linux's: window of 10 segments, times 0.7 at a loss, RTO = SRTT + max(200 ms, 4 RTTVAR).
"""

import math
from bisect import insort
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from netsim.core.link import LinkModel, Release

MSS = 1448  # payload of a segment of 1,500 bytes: 20 of IP, 20 of TCP, 12 of timestamps
HEADER = 52
INITIAL_SEGMENTS = 10.0  # RFC 6928
MAX_SEGMENTS = 2 * 1024 * 1024 / MSS  # half of Linux's largest send buffer (tcp_wmem, 4 MiB): the rest is overhead
BETA = 0.7
CUBIC_C = 0.4


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
        # 2 minutes is Linux's TCP_RTO_MAX, 0.2 s tcp_rto_min.
        return min(120.0, (self.srtt_s + max(0.2, 4.0 * self.variance_s)) * 2.0**self.backoff)

    @property
    def bytes(self) -> float:
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
        if len(self._round) < 8:
            self._round.append(rtt_s)
        elif self.segments >= 16.0:
            allowance = min(max(self._floor_s / 8.0, 0.004), 0.016)
            if min(self._round) > self._floor_s + allowance:
                self.threshold = self.segments

    def on_loss(self) -> None:
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


# Above this rate and without loss, segments are admitted in bundles: none needs a verdict of its own, and a gigabit
# costs 8,000 calls a second instead of 86,000.
BUNDLE_RATE_BPS = 100e6
BUNDLE_SEGMENTS = 11  # 16 KiB


class Delivery(NamedTuple):
    """What has arrived since the last call: bytes, perhaps the stream's end; `due` is when the first of it was due."""

    nbytes: int
    end: bool
    due: float


class _Segment:
    __slots__ = ("arrival", "counted", "first_sent", "nbytes", "noticed", "sent", "size")

    def __init__(self, nbytes: int, size: int, t: float) -> None:
        self.nbytes = nbytes  # payload; 0 for the end of the stream
        self.size = size  # on the wire
        self.first_sent = t
        self.sent = t
        self.arrival = math.inf  # infinite while lost
        self.noticed = math.inf  # when an acknowledgement of something later shows the loss
        self.counted = False  # whether the sender still thinks that it is in flight


_first_sent = attrgetter("first_sent")


class StreamSender:
    """The virtual sender of one direction; owns what is unsent, in flight and lost. `start` is when it may send."""

    def __init__(self, forward: LinkModel, backward: LinkModel, start: float, rtt_s: float) -> None:
        self._forward = forward
        self._backward = backward
        self._start = start
        self.window = Window(rtt_s)
        self.unsent = 0  # payload bytes that wait for the window: what a socket's send buffer holds
        self._end_unsent = False
        self._flight: deque[_Segment] = deque()  # sent and not delivered, in order
        self._lost: deque[_Segment] = deque()  # those of them that are lost, in order
        self._acks: deque[tuple[float, _Segment, float, bool]] = deque()  # (time, segment, round trip, was limited)
        self._pipe = 0  # payload that the sender thinks is in flight, lost or not
        self._timer = math.inf  # finite whenever something is lost
        self._probing = False  # the timer is a tail loss probe, not a time-out
        self._recovery_from = -math.inf
        self._last_sent = start

    @property
    def wake(self) -> float:
        """When `advance` or `deliver` has something to do next; infinite if nothing is under way."""
        times = [self._timer]
        if self._acks:
            times.append(self._acks[0][0])
        if self._flight:
            times.append(self._flight[0].arrival)
        if (segment := self._noticed(math.inf)) is not None:
            times.append(segment.noticed)
        if (self.unsent or self._end_unsent) and self._pipe == 0 and not self._lost:
            times.append(self._start)
        return min(times)

    def offer(self, nbytes: int, t: float) -> None:
        self.unsent += nbytes
        self.advance(t)

    def offer_end(self, t: float) -> None:
        self._end_unsent = True
        self.advance(t)

    def advance(self, t: float) -> None:
        """Does all that is due at `t`: acknowledgements, time-outs, retransmissions, new segments."""
        while self._acks and self._acks[0][0] <= t:
            if self._backward.schedule.cut_at(self._acks[0][0]):
                # The acknowledgements are cut off, not the data: they come back when the sender asks again.
                due = t + self.window.rto_s
                self._acks = deque((max(at, due), *rest) for at, *rest in self._acks)  # type: ignore[misc]
                break
            at, segment, rtt_s, limited = self._acks.popleft()
            self._uncount(segment)
            self.window.on_ack(segment.nbytes, rtt_s, at, limited=limited)
        if self._lost:
            self._recover(t)
        self._send_new(t)

    def cut(self, t: float) -> None:
        """The link was cut at `t` without warning: what had not arrived is lost."""
        for segment in self._flight:
            if t < segment.arrival < math.inf:
                segment.arrival = segment.noticed = math.inf
                insort(self._lost, segment, key=_first_sent)
        self._acks = deque(ack for ack in self._acks if ack[1].arrival < math.inf)
        if self._lost and self._timer == math.inf:
            self._timer, self._probing = t + self.window.rto_s, False

    def deliver(self, t: float) -> Delivery:
        """Takes what has arrived in order by `t`."""
        nbytes, end, due = 0, False, math.inf
        while self._flight and self._flight[0].arrival <= t:
            segment = self._flight.popleft()
            nbytes += segment.nbytes
            end = end or segment.nbytes == 0
            due = min(due, segment.arrival)
        return Delivery(nbytes, end, due)

    def _recover(self, t: float) -> None:
        if t >= self._timer:
            # Only the oldest is sent again; the others follow when its acknowledgement shows them lost.
            if self._probing:
                self.window.on_loss()
            else:
                self.window.on_timeout()
                for segment in (*self._flight, *(ack[1] for ack in self._acks)):
                    self._uncount(segment)
                self._acks.clear()
            self._recovery_from = t
            segment = self._lost.popleft()
            self._uncount(segment)
            self._timer, self._probing = (t + self.window.rto_s if self._lost else math.inf), False
            self._transmit(segment, t)
        while (noticed := self._noticed(t)) is not None:
            self._lost.remove(noticed)
            self._uncount(noticed)
            if noticed.sent >= self._recovery_from:
                self.window.on_loss()
                self._recovery_from = t
            self._transmit(noticed, t)
        if not self._lost:
            self._timer = math.inf

    def _noticed(self, t: float) -> _Segment | None:
        """The first segment that is known by `t` to be lost, if the window lets it be sent again."""
        for segment in self._lost:
            if segment.noticed <= t and segment.noticed < math.inf:
                elsewhere = self._pipe - (segment.nbytes if segment.counted else 0)
                return segment if elsewhere == 0 or elsewhere < self.window.bytes else None
        return None

    def _uncount(self, segment: _Segment) -> None:
        if segment.counted:
            segment.counted = False
            self._pipe -= segment.nbytes

    def _send_new(self, t: float) -> None:
        if t < self._start:
            return
        if self.unsent and self._pipe == 0 and not self._lost:
            self.window.on_idle(t - self._last_sent)
        conditions = self._forward.schedule.at(t)
        bundle = BUNDLE_SEGMENTS if conditions.loss.mean == 0.0 and conditions.rate_bps > BUNDLE_RATE_BPS else 1
        while self.unsent and (self._pipe + MSS <= self.window.bytes or self._pipe == 0):
            allowed = max(1, int((self.window.bytes - self._pipe) // MSS))
            nbytes = min(self.unsent, min(bundle, allowed) * MSS)
            self.unsent -= nbytes
            segment = _Segment(nbytes, nbytes + HEADER * -(-nbytes // MSS), t)
            self._flight.append(segment)
            self._transmit(segment, t)
        if self._end_unsent and not self.unsent:
            self._end_unsent = False
            segment = _Segment(0, HEADER, t)
            self._flight.append(segment)
            self._transmit(segment, t)

    def _transmit(self, segment: _Segment, t: float) -> None:
        alone = self._pipe == 0 and not self._lost
        segment.sent = self._last_sent = t
        segment.noticed = math.inf
        segment.counted = True
        limited = self.unsent > 0 or (self._pipe + segment.nbytes) * 2 >= self.window.bytes
        self._pipe += segment.nbytes
        verdict = self._forward.admit(segment.size, t)
        if not isinstance(verdict, Release):
            segment.arrival = math.inf
            insort(self._lost, segment, key=_first_sent)
            if self._timer == math.inf:
                # The tail of a flight is probed after two round trips (RFC 8985); a single segment waits for the
                # time-out.
                probe = 2.0 * self.window.srtt_s if not alone and self.window.backoff == 0 else math.inf
                self._timer, self._probing = t + min(probe, self.window.rto_s), probe < self.window.rto_s
            return
        segment.arrival = verdict.t
        back = verdict.t + self._backward.acknowledgement_s(verdict.t)
        if self._acks:
            back = max(back, self._acks[-1][0])
        self._acks.append((back, segment, back - t, limited))
        for lost in self._lost:
            if lost.noticed > back and lost.sent <= t:
                lost.noticed = back
        if self._lost and self._timer <= back:
            self._timer, self._probing = back + self.window.rto_s, False
