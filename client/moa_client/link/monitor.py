"""Whether the server is alive and makes progress: the round-trip time, and the timers that decide that it is not.

Pure: clock readings are arguments, in milliseconds. State: the smoothed round-trip time, how late beats come back, how
far apart the frames of an answer come, when the last frame came, when the last one other than a beat, and the beat
under way. Invariant: while something is expected, a beat is requested early enough that its answer can arrive before
the timer runs out, so a server that merely computes for long is not taken for lost. Nor is one on a busy machine, whose
answers come now and then late, or one whose frames a busy device has not had the time to read. `Outages` knows how
long the server has been lost, `LinkLosses` whether the link can be relied on.
"""

import math

from moa_shared.drafting.estimates import Smoothed

LEARN_WEIGHT = 1 / 2  # of a later answer (the RFC: 1/4): what is waited for then covers one twice as late
FORGET_WEIGHT = 1 / 8  # of an earlier one: with a beat each 8 s, half is forgotten after 42 s
DEVIATIONS = 4.0
MOST_LATE_MS = 1000.0  # what comes later was held up by an outage; those are to be noticed, not to be got used to
LEAST_TIMEOUT_MS = 150.0  # below it, the jitter of an idle machine would look like a lost link
TIMEOUT_ROUND_TRIPS = 4.0
BEAT_EVERY_MS = 8000.0  # while frames come: keeps the round-trip time fresh, and costs a server as much as two tokens
BEAT_AGAIN_MS = 1000.0  # in one silence
MOST_SILENCE_MS = 500.0  # of a server that answers beats, before the next one
# Times what usually lies between two frames of an answer, before silence is worth a beat. A server with 64 users steps
# every 0.1 s, and a beat with each token costs it as much as the token's own frame.
USUAL_GAPS = 1.5
MOST_DOUBLINGS = 3  # of that silence, one for each beat that a server answers which reads a long prompt, or has a queue
FIRST_RTT_MS = 500.0  # before anything is measured: satellites answer within that
HELD_UP_SHARE = 0.25  # of the timer: a device that wakes up later than that may have frames that it has not read
MOST_HOLD_UPS = 4  # in one silence: a device that is always held up must notice at some time that the link is lost
LATE_SHARE = 2.0  # of what this device wakes up later by: the time itself, and as much for what waits to be read
MOST_BEATS_OPEN = 64  # whose answers are waited for; older ones are lost


class LinkMonitor:
    """Monitors the link of one client; the round-trip time outlives a stream.

    `silence_ms`: how long a server may answer beats and nothing else.
    """

    def __init__(self, silence_ms: float = math.inf) -> None:
        self._silence_ms = silence_ms
        self._progress_ms = 0.0
        self._rtt = Smoothed(FIRST_RTT_MS)
        self._deviation_ms = 0.0  # by which beats come later than the mean round trip
        self._gap_ms = Smoothed()  # between frames that advance an answer
        self._in_text = False  # such a frame came since one was expected
        self._answered = 0  # beats since such a frame, or since one was expected
        self._heard_ms = 0.0
        self._beat_ms = -BEAT_EVERY_MS
        self._stamp = 0
        self._open: dict[int, float] = {}
        self._waiting = False
        self._hold_ups = 0  # in this silence
        self._late_ms = 0.0  # given to the server in this silence because this device was a little late
        self._set_timers()

    def _set_timers(self) -> None:
        """Called when what they follow from has changed, which is less often than they are looked at."""
        self._half_timer_ms = max(LEAST_TIMEOUT_MS, TIMEOUT_ROUND_TRIPS * self._rtt.mean) / 2
        thinks_ms = self._half_timer_ms * (1 << min(self._answered, MOST_DOUBLINGS))
        usual_ms = max(thinks_ms, USUAL_GAPS * self._gap_ms.mean)
        self._beat_after_ms = max(self._half_timer_ms, min(MOST_SILENCE_MS, usual_ms))
        late_ms = min(DEVIATIONS * self._deviation_ms, MOST_LATE_MS)
        # Time from the last sign of life to the first token of standalone text.
        self.timeout_ms = self._beat_after_ms + max(self._half_timer_ms, self._rtt.mean + late_ms)

    def expect(self, now_ms: float) -> None:
        """From now on, frames are expected (an answer begins or continues)."""
        if not self._waiting:
            self._waiting, self._in_text, self._answered = True, False, 0
            self._heard_ms = self._progress_ms = now_ms
            self._set_timers()

    def rest(self) -> None:
        self._waiting = False

    def forget_round_trips(self) -> None:
        """Those of now on are to another server."""
        self._rtt, self._gap_ms, self._deviation_ms = Smoothed(FIRST_RTT_MS), Smoothed(), 0.0
        self._set_timers()

    def on_opened(self, now_ms: float, took_ms: float) -> None:
        """A stream was opened; `took_ms` from Open to Opened."""
        self._open.clear()
        self._rtt.add(took_ms)
        self._progress_ms = self._beat_ms = now_ms
        self.on_frame(now_ms)
        self._in_text, self._answered = False, 0
        self._set_timers()

    def on_frame(self, now_ms: float) -> None:
        self._heard_ms = now_ms
        self._hold_ups, self._late_ms = 0, 0.0

    def on_wake(self, now_ms: float, late_ms: float) -> None:
        """This device checks again, `late_ms` after it wanted to.

        If it was held up itself, by other programs or in its sleep, frames may wait to be read: the server then has
        half a timer more; after a little, twice that.
        """
        if late_ms > HELD_UP_SHARE * self.timeout_ms:
            if self._hold_ups < MOST_HOLD_UPS:
                self._hold_ups += 1
                self._heard_ms = max(self._heard_ms, now_ms - self.timeout_ms / 2)
        elif LATE_SHARE * late_ms > self._late_ms:  # not their sum: each wake is late, the one that was put off too
            before_ms, self._late_ms = self._late_ms, LATE_SHARE * late_ms
            self._heard_ms = min(now_ms, self._heard_ms + self._late_ms - before_ms)

    def on_progress(self, now_ms: float) -> None:
        if self._in_text:
            self._gap_ms.add(min(now_ms - self._progress_ms, self.timeout_ms))  # a lost link is no usual gap
        self._progress_ms, self._in_text, self._answered = now_ms, True, 0
        self._set_timers()

    def on_step(self, step_ms: float) -> None:
        """The server's forward took so long: until two frames have shown it, the gap between them."""
        if not self._gap_ms.samples:
            self._gap_ms = Smoothed(step_ms)
            self._set_timers()

    def on_beat(self, now_ms: float, stamp: int) -> float | None:
        """A beat came back: how long it took; None for one that was never sent."""
        sent_ms = self._open.pop(stamp, None)
        if sent_ms is None:
            return None
        self._answered += 1
        took_ms = now_ms - sent_ms
        late_ms = min(max(took_ms - self._rtt.mean, 0.0), MOST_LATE_MS)
        weight = LEARN_WEIGHT if late_ms > self._deviation_ms else FORGET_WEIGHT
        self._deviation_ms += weight * (late_ms - self._deviation_ms)
        self._rtt.add(took_ms)
        self._set_timers()
        return took_ms

    def take_beat(self, now_ms: float) -> int | None:
        """The stamp of the beat to send now; None if none is due."""
        if not self._waiting or now_ms < self._beat_due_ms:
            return None
        self._stamp += 1
        self._open[self._stamp] = self._beat_ms = now_ms
        if len(self._open) > MOST_BEATS_OPEN:
            del self._open[next(iter(self._open))]
        return self._stamp

    @property
    def rtt_ms(self) -> float | None:
        """Smoothed round-trip time; None before the first sample."""
        return self._rtt.mean if self._rtt.samples else None

    def is_lost(self, now_ms: float) -> bool:
        return self._waiting and now_ms >= self._heard_ms + self.timeout_ms

    def is_stuck(self, now_ms: float) -> bool:
        """Whether the answer has not advanced for too long, whether or not the server is alive."""
        return self._waiting and now_ms >= self._progress_ms + self._silence_ms

    def wake_ms(self, *, can_beat: bool) -> float | None:
        """When to check again; None: nothing is expected.

        `can_beat`: whether a beat could be sent now; if not, a due beat is no reason to wake.
        """
        if not self._waiting:
            return None
        over_ms = min(self._heard_ms + self.timeout_ms, self._progress_ms + self._silence_ms)
        return min(self._beat_due_ms, over_ms) if can_beat else over_ms

    @property
    def _beat_due_ms(self) -> float:
        """Some time after the last frame, once for each silence; otherwise at regular intervals."""
        silent_ms = self._heard_ms + self._beat_after_ms
        if self._beat_ms > self._heard_ms:
            return self._beat_ms + BEAT_AGAIN_MS
        return min(silent_ms, self._beat_ms + BEAT_EVERY_MS)


LEAST_MS = 300.0  # shorter ones are hiccups of busy machines and radios, in which a device writes three words at most
TRUSTED_AFTER_MS = 600_000.0  # without a loss: on a drive or a train the next one comes within minutes


class LinkLosses:
    """When the newest loss that counts has ended."""

    def __init__(self) -> None:
        self._ended_ms = -math.inf

    def add(self, now: float, lasted_ms: float) -> None:
        if lasted_ms >= LEAST_MS:
            self._ended_ms = now

    def is_trusted(self, now: float) -> bool:
        """Whether the link has held for so long that it will probably hold."""
        return now >= self._ended_ms + TRUSTED_AFTER_MS


class Outages:
    """Whether a loss has lasted so long that it will hardly be over in a moment.

    `long_ms`: that this takes. `losses`: of the link, which learn of each that has ended; None: of this conversation
    alone.
    """

    def __init__(self, long_ms: float, losses: LinkLosses | None = None) -> None:
        self._losses = losses or LinkLosses()
        self._long_ms = long_ms
        self._since: float | None = None
        self.is_trying = False  # an attempt to connect is under way, or will be: it may succeed
        self._failed = -math.inf  # when the newest one has failed
        self._is_long = False  # as last observed

    @property
    def next_long_ms(self) -> float | None:
        """When this loss will have become a long one; None: there is none, it has already, or an attempt will tell."""
        return None if self._is_long else self.reaches_ms(self._long_ms)

    def on_failed(self, now: float) -> None:
        self._failed = now

    def known_ms(self, now: float) -> float:
        """Until when this loss is known to last: between two attempts to connect, until the first one failed."""
        return self._failed if self.is_trying else now

    def observe(self, now: float, *, is_served: bool) -> None:
        if is_served:
            if self._since is not None:
                self._losses.add(now, now - self._since)
            self._since, self._is_long = None, False
            return
        if self._since is None:
            self._since = now
        self._is_long = self.is_long(now)

    def is_link_trusted(self, now: float) -> bool:
        """Whether there is no loss that counts, and none is to be expected after those before."""
        return self._losses.is_trusted(now) and not self.has_lasted(now, LEAST_MS)

    def is_long(self, now: float) -> bool:
        return self.has_lasted(now, self._long_ms)

    def has_lasted(self, now: float, ms: float) -> bool:
        """Whether this loss has lasted for `ms`."""
        return self._since is not None and (ms <= 0 or self.known_ms(now) - self._since >= ms)

    def reaches_ms(self, ms: float) -> float | None:
        """When this loss has lasted for `ms`; None: there is none, or an attempt to connect will tell."""
        return None if self._since is None or self.is_trying else self._since + ms
