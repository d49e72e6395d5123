"""What one stream may cost the event loop: a bucket that fills with time and from which each frame is paid.

Pure but for the clock that it is given. State: what is left, in microseconds of the loop. Invariant: never more than
the burst is left. A frame is paid for when it has been handled, so what is left may be negative: the stream is then not
read until it has filled again, and gRPC's flow control holds the client back. Nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable

# Measured on one core of the reference machine, gRPC's part included.
FRAME_US = 100.0
BYTE_US = 0.01
NODE_US = 1.0
SHARE = 0.1  # of the loop; a client that streams 200 drafts of 8 nodes a second takes 0.02
BURST_US = 100_000.0  # a reconnect with a context of 131,072 tokens is 10,000


class Allowance:
    """Of one stream.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left_us = BURST_US
        self._filled_at = clock()

    def charge(self, nbytes: int, nodes: int) -> None:
        """Pays for a frame of `nbytes` bytes with `nodes` draft nodes."""
        self._fill()
        self._left_us -= FRAME_US + BYTE_US * nbytes + NODE_US * nodes

    @property
    def pause_seconds(self) -> float:
        """How long to read no further frame; 0: read on."""
        self._fill()
        return max(0.0, -self._left_us / (1e6 * SHARE))

    def _fill(self) -> None:
        now = self._clock()
        self._left_us = min(BURST_US, self._left_us + 1e6 * SHARE * (now - self._filled_at))
        self._filled_at = now
