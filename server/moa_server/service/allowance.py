"""What one connection may cost the server besides its forwards: a bucket that fills with time and pays for each frame.

Pure but for the clock that it is given. State: what is left, in microseconds of a core. Invariant: never more than
the burst is left. A frame is paid for when it has been handled, so what is left may be negative: the connection's
streams are then not read, and its calls not begun, until it has filled again, and gRPC's flow control holds the client
back. Nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable

# Measured on one core of the reference machine, gRPC's threads included: they take as much as the event loop.
CALL_US = 2000.0
FRAME_US = 150.0
REPLY_US = 150.0
BYTE_US = 0.01
NODE_US = 1.0
SHARE = 0.05  # of a core; a client that streams 200 drafts of 8 nodes a second takes 0.03
BURST_US = 100_000.0  # a reconnect with a context of 131,072 tokens is 10,000
TOGETHER_US = 2500.0  # of frames that are handled in one go after a pause: one by one they cost twice as much
MOST_KEPT = 1024  # allowances, before those that are full again are forgotten


class Allowance:
    """What one connection has left.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left_us = BURST_US
        self._filled_at = clock()

    def charge(self, nbytes: int, nodes: int, *, replies: bool = False) -> None:
        """Pays for a frame of `nbytes` bytes with `nodes` draft nodes; `replies`: the server answers with a frame."""
        self._fill()
        self._left_us -= FRAME_US + BYTE_US * nbytes + NODE_US * nodes + replies * REPLY_US

    def charge_call(self) -> None:
        """Pays for a call: its begin, its end, and what it takes to refuse it."""
        self._fill()
        self._left_us -= CALL_US

    @property
    def pause_seconds(self) -> float:
        """How long to read no further frame; 0: read on."""
        self._fill()
        return (TOGETHER_US - self._left_us) / (1e6 * SHARE) if self._left_us < 0.0 else 0.0

    @property
    def is_full(self) -> bool:
        """Whether nothing is owed, so that a new one would be as good."""
        self._fill()
        return self._left_us >= BURST_US

    def _fill(self) -> None:
        now = self._clock()
        self._left_us = min(BURST_US, self._left_us + 1e6 * SHARE * (now - self._filled_at))
        self._filled_at = now


class Allowances:
    """The allowance of each connection.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, Allowance] = {}

    def of(self, connection: str) -> Allowance:
        """What this connection has left, over all of its calls."""
        if len(self._kept) >= MOST_KEPT and connection not in self._kept:
            self._kept = {name: allowance for name, allowance in self._kept.items() if not allowance.is_full}
        return self._kept.setdefault(connection, Allowance(self._clock))
