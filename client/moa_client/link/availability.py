"""Whether a server decides the text, and what to do when that changes.

Pure: clock readings are arguments, in milliseconds; what to do is returned as steps, in order. State: the mode, what
the user sees of it, the monitor of the link, and the newest reason for a loss. Invariant: `GO_STANDALONE` is returned
when the mode leaves SERVED, `RETURN` when it comes back to it, and neither at any other time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from moa_shared.errors import MoaError, ProtocolError, UnavailableError

from moa_client.conversation.events import LinkChanged, LinkState
from moa_client.link.monitor import LinkMonitor
from moa_client.link.outages import Outages

SILENT_STREAM_MS = 500.0  # a stream silent for this long beyond the timer is replaced
# Steps of the server in a round trip from which a link is slow, and below which it is good again.
SLOW_STEPS, GOOD_STEPS = 4.0, 3.0


class Mode(Enum):
    """Who decides the text."""

    SERVED = auto()  # the server, as far as is known
    SILENT = auto()  # no server: a stream is open, but has been silent for too long; any frame ends this
    STALLED = auto()  # no server: the one there answers beats, but does not advance; only progress ends this
    OFFLINE = auto()  # no server: no stream is open
    OFFLINE_BY_WISH = auto()  # no server, until `go_online`


class LinkStep(Enum):
    """Something for the engine to do."""

    LEAVE = auto()  # leave the stream, and open no other
    REOPEN = auto()  # give the stream up as lost, and open another
    GO_STANDALONE = auto()  # the device continues without the server
    RETURN = auto()  # the server decides again


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Ask the server for a sign of life."""

    stamp: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the running answer with this error."""

    error: MoaError


Steps = list[LinkStep | SendBeat | GiveUp | LinkChanged]


class Availability:
    """Whether the server of one conversation is available.

    Args:
        silence_ms: how long a server may send nothing that advances the answer.
        end_ms: how long it must have been lost, at least, before an answer may end without it.
        offline: begin without a server, as the user wishes.
    """

    def __init__(self, silence_ms: float, end_ms: float = 0.0, *, offline: bool = False) -> None:
        self.outages = Outages(end_ms)
        self.monitor = LinkMonitor(silence_ms)
        self.mode = Mode.OFFLINE_BY_WISH if offline else Mode.SERVED
        self.state = LinkState.OFFLINE if offline else LinkState.GOOD
        self.wants_offline = offline  # followed by the mode at the next `tick`
        self.error: MoaError | None = None  # the newest reason for a loss, until a stream is open
        self._silence_ms = silence_ms
        self._told_until = -math.inf  # the server wants to be left alone until then
        self._must_reopen = False
        self._waiting_since: float | None = None  # for the server, by a device that cannot write on

    @property
    def is_served(self) -> bool:
        """Whether the server decides the text, as far as is known."""
        return self.mode is Mode.SERVED

    def may_end_answers(self, now: float) -> bool:
        """Whether standalone text may end the answer.

        A stream that is only silent may recover, and so may a link that was lost a moment ago.
        """
        if self.mode is Mode.OFFLINE_BY_WISH:
            return True
        return self.mode in (Mode.STALLED, Mode.OFFLINE) and self.outages.is_long(now)

    # ------------------------------------------------------------ the user

    def go_offline(self) -> None:
        """From the next `tick` on, no server is wanted."""
        self.wants_offline = True

    def go_online(self) -> None:
        """A server is wanted again."""
        self.wants_offline = False
        if self.mode is Mode.OFFLINE_BY_WISH:
            self.mode = Mode.OFFLINE

    def begin_lost(self) -> None:
        """The conversation was kept since a server was lost: the next one returns to it."""
        if self.is_served:
            self.mode, self.state = Mode.OFFLINE, LinkState.OFFLINE

    # ------------------------------------------------------------ the stream

    def on_opened(self, now: float, took_ms: float, *, is_elsewhere: bool = False) -> None:
        """A stream is open, `took_ms` after its Open, at another server than before or not; `on_return` follows."""
        if is_elsewhere:
            self.monitor.forget_round_trips()
        self.monitor.on_opened(now, took_ms)
        self.error, self._told_until = None, -math.inf

    def on_frame(self, now: float, *, is_progress: bool) -> None:
        """A frame has come. If the server `is_back` by it, `on_return` follows.

        Args:
            is_progress: it is no mere sign of life.
        """
        self.monitor.on_frame(now)
        if is_progress and not self.wants_offline:
            self.monitor.on_progress(now)
            self._waiting_since = None

    def is_back(self, now: float) -> bool:
        """Whether the frame that has just come shows that a server believed lost is available."""
        return not self.is_served and not self.monitor.is_stuck(now)

    def on_return(self, *, is_answering: bool) -> Steps:
        """The server is available (again).

        Args:
            is_answering: there is an answer for it to decide.
        """
        was_served, self.mode = self.is_served, Mode.SERVED
        if not was_served:
            is_back = is_answering and self.state is not LinkState.WAITING  # then the server was there all along
            return [LinkStep.RETURN, *self._change(LinkState.BACK if is_back else LinkState.GOOD)]
        return self._change(LinkState.GOOD) if self.state in (LinkState.OFFLINE, LinkState.WAITING) else []

    def replace_stream(self) -> None:
        """From the next `tick` on, another stream is wanted."""
        self._must_reopen = True

    def on_down(self, error: MoaError, *, broke: bool, is_expected: bool) -> Steps:
        """The stream is lost, or an attempt to open one has failed, for a reason that may pass.

        Args:
            broke: a useful stream has ended, and is reopened at once: the timer keeps running.
            is_expected: something is expected of the server; if not, the next question tries to connect first.
        """
        self.error = error
        if not is_expected:
            return self._change(LinkState.OFFLINE, error.message)
        if not broke:
            return self._lose(Mode.OFFLINE, error.message)
        if self.mode in (Mode.SILENT, Mode.STALLED):
            self.mode = Mode.OFFLINE
        return []

    def on_told_to_wait(self, now: float, error: MoaError, wait_ms: float) -> Steps:
        """The server is there, but wants to be asked again only so much later: the device continues meanwhile."""
        self.error, self._told_until = error, now + wait_ms
        was_served, self.mode, self.state = self.is_served, Mode.OFFLINE, LinkState.WAITING
        change = LinkChanged(LinkState.WAITING, error.message, wait_ms / 1e3)
        return [LinkStep.GO_STANDALONE, change] if was_served else [change]

    def on_idle(self, reason: str) -> Steps:
        """No stream is open, and none is wanted before the next question."""
        return self._change(LinkState.OFFLINE, reason)

    def distrust(self, error: ProtocolError) -> Steps:
        """The server violates the protocol: the device continues without it until the user connects again."""
        self.error = error
        self.wants_offline = True
        return self._lose(Mode.OFFLINE, error.message)

    # ------------------------------------------------------------ time

    def tick(
        self,
        now: float,
        *,
        is_up: bool,
        is_trying: bool,
        is_expected: bool,
        patience_ms: float | None,
        has_other: bool = False,
    ) -> Steps:
        """What is due now.

        Args:
            is_up, is_trying: a stream is open; one is being opened.
            is_expected: something is expected of the server.
            patience_ms: how long the user waits for an answer that this device cannot continue on its own; None: there
                is no such answer.
            has_other: another server may continue in place of one that makes no progress.
        """
        steps = self._tick(now, is_up=is_up, is_trying=is_trying, is_expected=is_expected)
        stalled = is_up and not self.wants_offline and self.monitor.is_stuck(now)
        if self._must_reopen or (stalled and has_other) or self._is_long_silent(now, is_up=is_up):
            steps.append(LinkStep.REOPEN)
            self._must_reopen = stalled = False
            self.mode = Mode.OFFLINE
        steps += self._check_patience(now, patience_ms, stalled=stalled)
        self.outages.observe(now, is_served=self.is_served or now < self._told_until)  # a promised wait is no loss
        return steps

    def _tick(self, now: float, *, is_up: bool, is_trying: bool, is_expected: bool) -> Steps:
        steps: Steps = []
        if self.wants_offline and (is_up or is_trying or self.mode is not Mode.OFFLINE_BY_WISH):
            steps += [LinkStep.LEAVE, *self._lose(Mode.OFFLINE_BY_WISH, "as requested")]
            is_up = False
        monitor = self.monitor
        if is_expected:
            monitor.expect(now)
        else:
            monitor.rest()
        if is_up and (stamp := monitor.take_beat(now)) is not None:
            steps.append(SendBeat(stamp))
        stalled = is_up and monitor.is_stuck(now)
        if self.is_served and monitor.is_lost(now):
            known = None if is_up else self.error  # of a stream that broke
            reason = "the server is silent" if known is None else known.message
            steps += self._lose(Mode.SILENT if is_up else Mode.OFFLINE, reason)
        if self.is_served and stalled:
            steps += self._lose(Mode.STALLED, "the server answers but makes no progress")
        elif self.mode is Mode.SILENT and stalled:
            self.mode = Mode.STALLED
        return steps

    def _is_long_silent(self, now: float, *, is_up: bool) -> bool:
        """Whether the open stream has been silent for so long that another one is opened."""
        is_open = is_up and not self.wants_offline
        return is_open and not self.is_served and self.monitor.is_lost(now - SILENT_STREAM_MS)

    def wake_ms(self, *, is_up: bool, patience_ms: float | None) -> float | None:
        """When to call `tick` again if nothing happens; None: no need.

        Args:
            is_up, patience_ms: as in `tick`.
        """
        times = []
        if is_up or self.is_served:
            monitor = self.monitor.wake_ms(can_beat=is_up)
            if monitor is not None:
                times.append(monitor + (0.0 if self.is_served else SILENT_STREAM_MS))
        if self._waiting_since is not None and patience_ms is not None and not self.is_served:
            times.append(max(self._waiting_since, self._told_until) + patience_ms)
        if self.mode in (Mode.STALLED, Mode.OFFLINE) and (ends := self.outages.next_long_ms) is not None:
            times.append(ends)
        return min(times, default=None)

    # ------------------------------------------------------------ what the user sees

    def grade(self, step_ms: float) -> Steps:
        """Grades the link good or slow by how many steps of the server, of `step_ms` each, a round trip takes."""
        rtt_ms = self.monitor.rtt_ms
        if rtt_ms is None:
            return []
        if self.state is LinkState.GOOD and rtt_ms > SLOW_STEPS * step_ms:
            return self._change(LinkState.SLOW)
        if self.state is LinkState.SLOW and rtt_ms < GOOD_STEPS * step_ms:
            return self._change(LinkState.GOOD)
        return []

    def on_verified(self) -> Steps:
        """No provisional text is left to verify."""
        return self._change(LinkState.GOOD) if self.state is LinkState.BACK else []

    # ------------------------------------------------------------ inside

    def _check_patience(self, now: float, patience_ms: float | None, *, stalled: bool) -> Steps:
        """Limits how long a device that cannot continue on its own waits for the server."""
        if patience_ms is None:
            self._waiting_since = None
            return []
        if self.is_served:
            return []  # an open stream that has brought nothing yet does not count as progress
        if self._waiting_since is None:
            self._waiting_since = now
        if self.wants_offline:
            without = "Without a server this device cannot answer."
            return [GiveUp(self.error or UnavailableError(without, hint="/online connects again."))]
        if stalled or now >= max(self._waiting_since, self._told_until) + patience_ms:
            silent = f"The server has sent nothing for {(self._silence_ms if stalled else patience_ms) / 1e3:g} s."
            return [GiveUp(self.error or UnavailableError(silent, hint="Ask again, or try another server."))]
        return []

    def _lose(self, mode: Mode, reason: str) -> Steps:
        was_served, self.mode = self.is_served, mode
        change = self._change(LinkState.OFFLINE, reason)
        return [LinkStep.GO_STANDALONE, *change] if was_served else change

    def _change(self, state: LinkState, reason: str = "") -> Steps:
        if state is self.state:
            return []
        self.state = state
        return [LinkChanged(state, reason)]
