"""What a connection, or the calls of an address, may cost the server besides forwards: a bucket that fills with time.
It pays for each frame and call. A caller with a good key has buckets of its own there, apart from those of strangers.

Pure but for the clock that it is given. State: what is left, in microseconds of a core. Invariant: never more than
the burst is left. A frame is paid for when it has been handled, so what is left may be negative: the connection's
streams are then not read, and its calls not begun, until it has filled again, and gRPC's flow control holds the client
back. Nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

# Measured on one core of the reference machine, gRPC's threads included: they take as much as the event loop.
CALL_US = 2000.0
WRONG_KEY_US = 20_000.0
FRAME_US = 150.0
REPLY_US = 150.0
BYTE_US = 0.01
NODE_US = 1.0
SHARE = 0.05  # of a core; a client that streams 200 drafts of 8 nodes a second takes 0.03
BURST_US = 100_000.0  # a reconnect with a context of 131,072 tokens is 10,000
ADDRESS_TIMES = 4  # what one connection has, at least, for the calls of an address: 100 a second
TOGETHER_US = 2500.0  # of frames that are handled in one go after a pause: one by one they cost twice as much
MOST_KEPT = 1024  # allowances, before those that are full again are forgotten


class Allowance:
    """What one connection, or address, has left.

    Args:
        clock: seconds, monotonic.
        times: as much as one connection has.
    """

    def __init__(self, clock: Callable[[], float], times: float = 1.0) -> None:
        self._clock = clock
        self._share, self._burst_us = times * SHARE, times * BURST_US
        self._left_us = self._burst_us
        self._filled_at = clock()

    def charge(self, nbytes: int, nodes: int, *, replies: bool = False) -> None:
        """Pays for a frame of `nbytes` bytes with `nodes` draft nodes; `replies`: the server answers with a frame."""
        self._fill()
        self._left_us -= FRAME_US + BYTE_US * nbytes + NODE_US * nodes + replies * REPLY_US

    def charge_call(self) -> None:
        """Pays for a call: its begin, its end, and what it takes to refuse it."""
        self._fill()
        self._left_us -= CALL_US

    def charge_wrong_key(self) -> None:
        """Pays for a key that is not in force: two and a half guesses a second are left."""
        self._fill()
        self._left_us -= WRONG_KEY_US

    @property
    def pause_seconds(self) -> float:
        """How long to read no further frame; 0: read on."""
        self._fill()
        return (TOGETHER_US - self._left_us) / (1e6 * self._share) if self._left_us < 0.0 else 0.0

    @property
    def is_full(self) -> bool:
        """Whether nothing is owed, so that a new one would be as good."""
        self._fill()
        return self._left_us >= self._burst_us

    def _fill(self) -> None:
        now = self._clock()
        self._left_us = min(self._burst_us, self._left_us + 1e6 * self._share * (now - self._filled_at))
        self._filled_at = now


class Allowances:
    """The allowance of each account (`Caller.account`) of connections, or of addresses.

    Args:
        clock: seconds, monotonic.
        times: as much as one connection has.
    """

    def __init__(self, clock: Callable[[], float], times: float = 1.0) -> None:
        self._clock = clock
        self._times = times
        self._kept: dict[str, Allowance] = {}
        self.connections = 0  # that have made a call; one that was forgotten counts again

    def of(self, name: str) -> Allowance:
        """What is left for this name, over all of its calls."""
        if len(self._kept) >= MOST_KEPT and name not in self._kept:
            self._kept = {each: allowance for each, allowance in self._kept.items() if not allowance.is_full}
        if name not in self._kept:
            self._kept[name] = Allowance(self._clock, self._times)
            self.connections += 1
        return self._kept[name]


def address_times(calls_per_minute: int) -> float:
    """How much the calls of an address may cost, in allowances of one connection, if so many are permitted.

    Twice as much as these take: where more come, some are refused, which costs as much.
    """
    if not calls_per_minute:
        return math.inf
    return max(ADDRESS_TIMES, 2 * calls_per_minute * CALL_US / (60e6 * SHARE))
