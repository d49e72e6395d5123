"""The memory of one conversation: what has arrived, how long drafting waits for its newest row, and its codec.

State: which positions have their row on each plane, the codec ladder, which rows the server was asked for, and when
drafting may continue. Without a drafter that reads memory it is empty and asks for nothing. Clock readings are
arguments, in milliseconds. Invariants: rows of positions that are not committed are refused; rows that fall behind the
text bring a cheaper codec within a window; a better one is tried only after quiet windows, twice as many after each
attempt that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from moa_shared.drafting.estimates import Smoothed
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import NO_ROWS, THIN, Memory, Plane, ThinMemory
from moa_shared.protocol.prefix_hash import PrefixHashes


class MemoryReader(Protocol):
    """A drafter that reads memory."""

    # Takes in `count` coded rows of `width` numbers, from position `start` on. state: of the plane of reused states.
    def remember(self, start: int, payload: bytes, codec: Codec, count: int, width: int, *, state: bool) -> None: ...


class RowsHeld:
    """Positions of one plane whose rows have arrived."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self.first_missing = 0
        self.stop = 0  # after the newest one

    def add(self, start: int, stop: int) -> None:
        self._held.update(range(start, stop))
        self.stop = max(self.stop, stop)
        while self.first_missing in self._held:
            self.first_missing += 1

    def crop(self, length: int) -> None:
        """Forgets rows from position `length` on."""
        if length < self.stop:
            self._held = {position for position in self._held if position < length}
            self.stop = max(self._held, default=-1) + 1
            self.first_missing = min(self.first_missing, length)


class MemoryReceiver:
    """Receives the memory of one drafter.

    Args:
        widths: numbers of a row of each requested plane.

    The first plane is the one that drafts need most: `newest` is about it.
    """

    def __init__(self, reader: MemoryReader, widths: Mapping[Plane, int], codecs: Sequence[Codec]) -> None:
        self._reader = reader
        self._widths = widths
        self._codecs = tuple(codecs)
        self._rows = {plane: RowsHeld() for plane in widths}

    @property
    def newest(self) -> int:
        """Rows of the first plane have arrived for positions up to here."""
        return next(iter(self._rows.values())).stop

    @property
    def gap(self) -> int:
        """The first position that lacks a row of the first plane."""
        return next(iter(self._rows.values())).first_missing

    def crop(self, length: int) -> None:
        """The drafter has forgotten what it knew from position `length` on."""
        for rows in self._rows.values():
            rows.crop(length)

    def on_frame(self, memory: Memory, hashes: PrefixHashes) -> None:
        """Takes in a frame; one for other tokens (in flight when they changed) is ignored."""
        width = self._widths.get(memory.plane)
        if not width:
            raise ProtocolError("no memory that was not asked for", f"memory of plane {memory.plane}")
        if memory.codec not in self._codecs:
            names = " or ".join(codec.name.lower() for codec in self._codecs)
            raise ProtocolError(f"memory in {names}", memory.codec.name.lower())
        stop = memory.start + memory.count
        if stop > len(hashes):
            raise ProtocolError(f"memory of positions before {len(hashes)}", f"{memory.start} to {stop - 1}")
        if memory.prefix_hash != hashes.short_at(stop):
            return
        self._reader.remember(
            memory.start, memory.payload, memory.codec, memory.count, width, state=memory.plane is Plane.REUSED_STATE
        )
        self._rows[memory.plane].add(memory.start, stop)


WINDOW_MS = 1000.0  # long compared with the jitter of a radio link, short compared with an answer
LATE_TOKENS = 4  # committed tokens without their row: more than a verification brings, so the link is behind
QUIET_WINDOWS = 4  # before a better codec is tried
SHARE = 0.8  # of the measured goodput that rows may take: verdicts need the rest


class CodecLadder:
    """Chooses the codec of one stream.

    `codecs` are those offered, the best (most bytes) first; `token_bytes` gives the size of a token's rows in one.
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
        return self._codecs[self._rung]

    def on_memory(self, nbytes: int) -> None:
        self._bytes += nbytes

    def next_codec(self, now_ms: float, tokens: int, behind: int) -> Codec | None:
        """Counts committed tokens; the codec to change to, if any.

        `behind`: committed tokens whose rows have not arrived.
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


# Tokens without a draft of this device before it gives rows up: a server that drafts now and then, or is only asked
# whether it has time again, would have all rows sent anew each time.
CALM_TOKENS = 64


class ThinRule:
    """Whether a few rows are enough for one conversation's device."""

    def __init__(self) -> None:
        self._calm_tokens = CALM_TOKENS  # before the first draft there is nothing that rows would be missed for

    def count_tokens(self, tokens: int, *, drafts: bool) -> None:
        """Counts `tokens` of a verdict; `drafts`: this device drafts for the server."""
        self._calm_tokens = 0 if drafts else self._calm_tokens + tokens

    def allows_few(self, *, drafts: bool, is_link_trusted: bool) -> bool:
        return is_link_trusted and not drafts and self._calm_tokens >= CALM_TOKENS


FIRST_ROW_LAG_MS = 5.0  # before anything is measured
PROMPT_HOLD_MS = (
    2000.0  # the longest wait for rows of the prompt: after it, the server is assumed to have no time for them
)
CREDIT_EVERY_BYTES = 2048  # half of the least credit that a server may give: it never runs dry meanwhile


class MemoryPlan:
    """What memory one client asks for, and what drafting waits for.

    Args:
        reader: takes rows in; None without a drafter that reads memory.
        widths: numbers of a row of each plane, starting with the plane that drafts need most.
        codec: the best one; cheaper ones are also offered.
    """

    def __init__(self, reader: MemoryReader | None, widths: Mapping[Plane, int], codec: Codec) -> None:
        self.hold_until_ms = 0.0  # no drafting before the newest row, or this time
        self.thin: ThinMemory | None = None  # the rows that the server was asked for; None: all
        self._reader = reader
        self._codecs = tuple(each for each in Codec if each >= codec) if reader is not None else ()
        self._widths = widths
        self._has_states = Plane.REUSED_STATE in widths
        self._answer_start = 0
        self._verdict_ms = 0.0
        self._owed = 0  # bytes received but not yet reported to the server
        self._row_lag = Smoothed(FIRST_ROW_LAG_MS)  # from a verdict to its memory row
        self.restart()

    def restart(self) -> None:
        """Starts a new conversation: nothing of it has arrived."""
        self._receiver = None if self._reader is None else MemoryReceiver(self._reader, self._widths, self._codecs)
        self._ladder = self._new_ladder()

    def stop(self) -> None:
        """No server has memory for the drafter any more: nothing is asked for, or waited for."""
        self._reader, self._codecs, self.hold_until_ms = None, (), 0.0
        self.restart()

    @property
    def fewest(self) -> ThinMemory | None:
        """The rows that are enough while the device drafts nothing; None: no memory is wanted.

        A drafter with reused layers predicts the states between a few; others make nothing of single rows.
        """
        if self._receiver is None:
            return None
        return THIN if self._has_states else NO_ROWS

    @property
    def offered(self) -> list[int]:
        """Codecs for Open, best first; none: no memory is wanted."""
        return [codec.value for codec in self._codecs]

    def first_missing(self, length: int) -> int:
        """The first of `length` positions whose rows a server should resend: of the plane that drafts need most."""
        return min(self._receiver.gap, length) if self._receiver is not None else 0

    def on_opened(self, codec: int) -> None:
        if codec not in (0, *self.offered):
            expected = f"memory in {self._codecs[0].name.lower()}" if self._codecs else "no memory"
            raise ProtocolError(expected, f"codec {codec}")
        self._owed = 0
        self._ladder = self._new_ladder()

    def change(self, now: float, thin: ThinMemory | None) -> None:
        """The server is asked for these rows from now on; with all of them again, drafting waits for the prompt's."""
        was_thin, self.thin = self.thin is not None, thin
        self._ladder = self._new_ladder()
        if was_thin and thin is None and self.lacks_prompt:
            self.hold_until_ms = now + PROMPT_HOLD_MS

    def begin_answer(self, now: float, start: int) -> None:
        """Called when an answer's first token has come; the rows of the prompt, `start` tokens, should follow."""
        self._answer_start = start
        if self.lacks_prompt and self.thin is None:
            self.hold_until_ms = now + PROMPT_HOLD_MS

    @property
    def lacks_prompt(self) -> bool:
        """Whether rows of the prompt are missing without which a draft is useless and says nothing about the drafter.

        These are all states that enter reused layers; of memory rows the newest are enough.
        """
        if self._receiver is None:
            return False
        return (self._receiver.gap if self._has_states else self._receiver.newest) < self._answer_start

    def hold(self, now: float, before: int, most_ms: float) -> None:
        """Makes drafting wait for the row of the newest token, as long as that usually takes.

        Args:
            before: tokens before the newest verdict. If their rows were late already, none is waited for: a
                server that has no time for memory would keep the drafter from ever drafting.
            most_ms: the longest time to wait.
        """
        if self._receiver is not None and self._receiver.newest >= before - 1 and not self.lacks_prompt:
            self.hold_until_ms = now + min(most_ms, self._row_lag.high)

    def on_verdict(self, now: float, tokens: int, length: int) -> Codec | None:
        """Counts `tokens` of a verdict, with `length` in all; the codec to change to, if it is time."""
        self._verdict_ms = now
        if self._receiver is None or self.thin is not None:
            return None
        behind = length - 1 - tokens - self._receiver.newest  # rows follow their verdict
        return self._ladder.next_codec(now, tokens, behind)

    def on_memory(self, now: float, memory: Memory, hashes: PrefixHashes) -> int:
        """Takes in a frame; the bytes to credit now, if it is time."""
        if self._receiver is None:
            raise ProtocolError("no memory that was not asked for", f"memory of plane {memory.plane}")
        before, lacked = self._receiver.newest, self.lacks_prompt
        self._receiver.on_frame(memory, hashes)
        self._ladder.on_memory(len(memory.payload))
        if before < self._receiver.newest == len(hashes) - 1 and not lacked:
            self._row_lag.add(now - self._verdict_ms)
            self.hold_until_ms = 0.0
        if lacked and not self.lacks_prompt:
            self.hold_until_ms = 0.0
        self._owed += len(memory.payload)
        if self._owed < CREDIT_EVERY_BYTES:
            return 0
        owed, self._owed = self._owed, 0
        return owed

    def crop(self, length: int) -> None:
        """The drafter has forgotten what it knew from position `length` on."""
        if self._receiver is not None:
            self._receiver.crop(length)

    def _new_ladder(self) -> CodecLadder:
        return CodecLadder(self._codecs, lambda codec: sum(row_bytes(codec, width) for width in self._widths.values()))
