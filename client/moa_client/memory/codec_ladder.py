"""Chooses the codec for memory: the best that the link carries, as adaptive video chooses its quality.

Pure: clock readings are arguments. State: bytes and tokens of the window under way, the rung, and when to try a better
one. Invariants: rows that fall behind the text bring a cheaper codec within a window; a better one is tried only after
quiet windows, twice as many after each attempt that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_shared.protocol.memory_codec import Codec

WINDOW_MS = 1000.0  # long compared with the jitter of a radio link, short compared with an answer
LATE_TOKENS = 4  # committed tokens without their row: more than a verification brings, so the link is behind
QUIET_WINDOWS = 4  # before a better codec is tried
SHARE = 0.8  # of the measured goodput that rows may take: verdicts need the rest


class CodecLadder:
    """Chooses the codec of one stream.

    Args:
        codecs: offered, best (most bytes) first.
        token_bytes: size of a token's rows in a codec.
    """

    def __init__(self, codecs: Sequence[Codec], token_bytes: Callable[[Codec], int]) -> None:
        self._codecs = tuple(codecs)
        self._token_bytes = token_bytes
        self._rung = 0
        self._began_ms: float | None = None
        self._bytes = 0
        self._tokens = 0
        self._quiet = 0
        self._wait = QUIET_WINDOWS
        self._tried = False  # the current rung is an attempt
        self._behind = 0  # at the end of the last window

    @property
    def codec(self) -> Codec:
        """The one to use now."""
        return self._codecs[self._rung]

    def on_memory(self, nbytes: int) -> None:
        """Counts rows that arrived."""
        self._bytes += nbytes

    def on_verdict(self, now_ms: float, tokens: int, behind: int) -> Codec | None:
        """Counts committed tokens; the codec to change to, if any.

        Args:
            behind: committed tokens whose rows have not arrived.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        self._tokens += tokens
        if now_ms < self._began_ms + WINDOW_MS:
            return None
        before = self._rung
        seconds = (now_ms - self._began_ms) / 1e3
        falls_behind = behind > LATE_TOKENS and behind >= self._behind  # if it is catching up, the link carries it
        self._behind = behind
        if falls_behind:
            self._go_down(self._bytes / seconds, self._tokens / seconds)
        elif behind <= LATE_TOKENS:
            self._quiet += 1
            if self._quiet >= self._wait and self._rung > 0:
                self._rung -= 1
                self._quiet, self._tried = 0, True
            elif self._tried and self._quiet >= QUIET_WINDOWS:
                self._wait, self._tried = QUIET_WINDOWS, False  # the attempt succeeded
        self._began_ms, self._bytes, self._tokens = now_ms, 0, 0
        return self.codec if self._rung != before else None

    def _go_down(self, goodput: float, tokens_per_s: float) -> None:
        """Takes the best codec that fits into `goodput`, which is what the link carries, since rows were waiting."""
        if self._tried:
            self._wait *= 2
        self._quiet, self._tried = 0, False
        last = len(self._codecs) - 1
        self._rung = min(self._rung + 1, last)
        while self._rung < last and self._token_bytes(self.codec) * tokens_per_s > SHARE * goodput:
            self._rung += 1
