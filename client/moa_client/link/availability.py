"""Whether a server decides the text, and what to do when that changes.

Pure: clock readings are arguments, in milliseconds; what to do and what to show is returned as a `Reaction`. State: the
mode, what the user sees of it, the monitor of the link, and the newest reason for a loss. Invariant: `GO_STANDALONE` is
returned when the mode leaves SERVED, and at no other time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from moa_shared.errors import MoaError, ProtocolError, UnavailableError

from moa_client.conversation.events import LinkChanged, LinkState
from moa_client.link.monitor import LinkLosses, LinkMonitor, Outages

SILENT_STREAM_MS = 500.0  # a stream silent for this long beyond the timer is replaced
# Steps of the server in a round trip from which a link is slow, and below which it is good again.
SLOW_STEPS, GOOD_STEPS = 4.0, 3.0


class Mode(Enum):
    """Who decides the text."""

    SERVED = auto()  # the server, as far as is known
    SILENT = auto()  # no server: a stream is open, but has been silent for too long; any frame ends this
    STALLED = auto()  # no server: this one answers beats, but does not advance; only progress ends this
    OFFLINE = auto()  # no server: no stream is open
    OFFLINE_BY_WISH = auto()  # no server, until `go_online`


class LinkCommand(Enum):
    """A change of the stream, or of who writes."""

    LEAVE = auto()  # leave the stream, and open no other
    REOPEN = auto()  # give the stream up as lost, and open another
    GO_STANDALONE = auto()  # the device continues without the server


@dataclass(frozen=True, slots=True)
class SendBeat:
    """A command to ask the server for a sign of life."""

    stamp: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A command to end the running answer with this error."""

    error: MoaError


Command = LinkCommand | SendBeat | GiveUp
Events = tuple[LinkChanged, ...]


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the engine must do, in order, and what the reader learns."""

    commands: tuple[Command, ...] = ()
    events: Events = ()

    def __add__(self, later: Reaction) -> Reaction:
        return Reaction(self.commands + later.commands, self.events + later.events)


NOTHING = Reaction()


class Availability:
    """Whether the server of one conversation is available.

    Args:
        silence_ms: how long a server may send nothing that advances the answer.
        end_ms: how long it must have been lost, at least, before an answer may end without it.
        offline: begin without a server, as the user wishes.
        losses: of the link that other conversations use too; None: of this one alone.
    """

    def __init__(
        self, silence_ms: float, end_ms: float = 0.0, *, offline: bool = False, losses: LinkLosses | None = None
    ) -> None:
        self.outages = Outages(end_ms, losses)
        self.monitor = LinkMonitor(silence_ms)
        self.mode = Mode.OFFLINE_BY_WISH if offline else Mode.SERVED
        self.state = LinkState.OFFLINE if offline else LinkState.GOOD
        self.wants_offline = offline  # followed by the mode at the next `tick`
        self.error: MoaError | None = None  # the newest reason for a loss, until a stream is open
        self.silence_ms = silence_ms
        self._told_until = -math.inf  # the server has asked for a pause until then
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

        `is_progress`: it is no mere sign of life.
        """
        self.monitor.on_frame(now)
        if is_progress and not self.wants_offline:
            self.monitor.on_progress(now)
            self._waiting_since = None

    def is_back(self, now: float) -> bool:
        """Whether the frame that has just come shows that a server believed lost is available."""
        return not self.is_served and not self.monitor.is_stuck(now)

    def on_return(self, *, is_answering: bool) -> Events:
        """The server is available (again). `is_answering`: there is an answer for it to decide."""
        was_served, self.mode = self.is_served, Mode.SERVED
        if not was_served:
            is_back = is_answering and self.state is not LinkState.WAITING  # in which the server was never away
            return self._change(LinkState.BACK if is_back else LinkState.GOOD)
        return self._change(LinkState.GOOD) if self.state in (LinkState.OFFLINE, LinkState.WAITING) else ()

    def on_lost(self, error: MoaError, *, broke: bool, is_expected: bool) -> Reaction:
        """The stream is lost, or an attempt to open one has failed, for a reason that may pass.

        `broke`: a useful stream has ended, and is reopened at once: the timer keeps running. `is_expected`: something
        is expected of the server; if not, the next question tries to connect first.
        """
        self.error = error
        if not is_expected:
            return Reaction(events=self._change(LinkState.OFFLINE, error.message))
        if not broke:
            return self._lose(Mode.OFFLINE, error.message)
        if self.mode in (Mode.SILENT, Mode.STALLED):
            self.mode = Mode.OFFLINE
        return NOTHING

    def on_told_to_wait(self, now: float, error: MoaError, wait_ms: float) -> Reaction:
        """The server is there, but wants to be asked again only so much later: the device continues meanwhile."""
        self.error, self._told_until = error, now + wait_ms
        was_served, self.mode, self.state = self.is_served, Mode.OFFLINE, LinkState.WAITING
        commands = (LinkCommand.GO_STANDALONE,) if was_served else ()
        return Reaction(commands, (LinkChanged(LinkState.WAITING, error.message, wait_ms / 1e3),))

    def on_idle(self, reason: str) -> Events:
        """No stream is open, and none is wanted before the next question."""
        return self._change(LinkState.OFFLINE, reason)

    def distrust(self, error: ProtocolError) -> Reaction:
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
    ) -> Reaction:
        """What is due now.

        Args:
            is_up, is_trying: a stream is open; one is being opened.
            is_expected: something is expected of the server.
            patience_ms: how long the user waits for an answer that this device cannot continue on its own; inf: until
                whoever asks ends it; None: there is no such answer.
            has_other: another server may continue in place of one that makes no progress.
        """
        self.outages.is_trying = is_trying
        reaction = self._follow_timers(now, is_up=is_up, is_trying=is_trying, is_expected=is_expected)
        is_open = is_up and not self.wants_offline
        stalled = is_open and self.monitor.is_stuck(now)
        is_long_silent = is_open and not self.is_served and self.monitor.is_lost(now - SILENT_STREAM_MS)
        if (stalled and has_other) or is_long_silent:
            reaction += Reaction((LinkCommand.REOPEN,))
            stalled = False
            self.mode = Mode.OFFLINE
        reaction += self._check_patience(now, patience_ms, stalled=stalled)
        self.outages.observe(now, is_served=self.is_served or now < self._told_until)  # a promised wait is no loss
        return reaction

    def _follow_timers(self, now: float, *, is_up: bool, is_trying: bool, is_expected: bool) -> Reaction:
        reaction = NOTHING
        if self.wants_offline and (is_up or is_trying or self.mode is not Mode.OFFLINE_BY_WISH):
            reaction += Reaction((LinkCommand.LEAVE,)) + self._lose(Mode.OFFLINE_BY_WISH, "as requested")
            is_up = False
        monitor = self.monitor
        if is_expected:
            monitor.expect(now)
        else:
            monitor.rest()
        if is_up and (stamp := monitor.take_beat(now)) is not None:
            reaction += Reaction((SendBeat(stamp),))
        stalled = is_up and monitor.is_stuck(now)
        if self.is_served and monitor.is_lost(now):
            known = None if is_up else self.error  # of a stream that broke
            reason = "the server is silent" if known is None else known.message
            reaction += self._lose(Mode.SILENT if is_up else Mode.OFFLINE, reason)
        if self.is_served and stalled:
            reaction += self._lose(Mode.STALLED, "the server answers but makes no progress")
        elif self.mode is Mode.SILENT and stalled:
            self.mode = Mode.STALLED
        return reaction

    def wake_ms(self, *, is_up: bool, patience_ms: float | None) -> float | None:
        """When to call `tick` again if nothing happens; None: no need. `is_up`, `patience_ms`: as in `tick`."""
        times = []
        if is_up or self.is_served:
            monitor = self.monitor.wake_ms(can_beat=is_up)
            if monitor is not None:
                times.append(monitor + (0.0 if self.is_served else SILENT_STREAM_MS))
        may_give_up = not self.is_served and not self.outages.is_trying  # else an attempt to connect will tell
        if self._waiting_since is not None and may_give_up and patience_ms is not None:
            times.append(max(self._waiting_since, self._told_until) + patience_ms)
        if self.mode in (Mode.STALLED, Mode.OFFLINE) and (ends := self.outages.next_long_ms) is not None:
            times.append(ends)
        return min(times, default=None)

    # ------------------------------------------------------------ what the user sees

    def grade(self, step_ms: float) -> Events:
        """Grades the link good or slow by how many steps of the server, of `step_ms` each, a round trip takes."""
        rtt_ms = self.monitor.rtt_ms
        if rtt_ms is None:
            return ()
        if self.state is LinkState.GOOD and rtt_ms > SLOW_STEPS * step_ms:
            return self._change(LinkState.SLOW)
        if self.state is LinkState.SLOW and rtt_ms < GOOD_STEPS * step_ms:
            return self._change(LinkState.GOOD)
        return ()

    def on_verified(self) -> Events:
        """No provisional text is left to verify."""
        return self._change(LinkState.GOOD) if self.state is LinkState.BACK else ()

    # ------------------------------------------------------------ inside

    def _check_patience(self, now: float, patience_ms: float | None, *, stalled: bool) -> Reaction:
        """Limits how long a device that cannot continue on its own waits for the server."""
        if patience_ms is None:
            self._waiting_since = None
            return NOTHING
        if self.is_served:
            return NOTHING  # an open stream that has brought nothing yet does not count as progress
        if self._waiting_since is None:
            self._waiting_since = now
        if self.wants_offline:
            without = "Without a server this device cannot answer."
            return _giving_up(self.error or UnavailableError(without, hint="/online connects again."))
        if patience_ms == math.inf:
            return NOTHING
        if stalled or self.outages.known_ms(now) >= max(self._waiting_since, self._told_until) + patience_ms:
            silent = f"The server has sent nothing for {(self.silence_ms if stalled else patience_ms) / 1e3:g} s."
            return _giving_up(self.error or UnavailableError(silent, hint="Ask again, or try another server."))
        return NOTHING

    def _lose(self, mode: Mode, reason: str) -> Reaction:
        was_served, self.mode = self.is_served, mode
        commands = (LinkCommand.GO_STANDALONE,) if was_served else ()
        return Reaction(commands, self._change(LinkState.OFFLINE, reason))

    def _change(self, state: LinkState, reason: str = "") -> Events:
        if state is self.state:
            return ()
        self.state = state
        return (LinkChanged(state, reason),)


def _giving_up(error: MoaError) -> Reaction:
    return Reaction((GiveUp(error),))
