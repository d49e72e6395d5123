"""The memory of one conversation: which rows have arrived, which are asked for, and how long drafting waits for them.

Without a drafter that reads memory it is empty and asks for nothing. Clock readings are arguments, in milliseconds.
Invariant: rows of positions that are not committed are refused, and so is what was not asked for.
"""

from collections.abc import Callable, Mapping

from moa_shared.drafting.estimates import Smoothed
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec, row_bytes
from moa_shared.protocol.messages import NO_ROWS, THIN, Memory, Plane, ThinMemory
from moa_shared.protocol.prefix_hash import PrefixHashes


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
        if length < self.stop:
            self._held = {position for position in self._held if position < length}
            self.stop = max(self._held, default=-1) + 1
            self.first_missing = min(self.first_missing, length)


FIRST_ROW_LAG_MS = 5.0  # before anything is measured
# The longest wait for rows of the prompt: after it, the server is assumed to have no time for them.
PROMPT_HOLD_MS = 2000.0
CREDIT_EVERY_BYTES = 2048  # half of the least credit that a server may give: it never runs dry meanwhile


class MemoryPlan:
    """What memory one client asks for, and what drafting waits for.

    `take_rows`: takes in a frame, whose rows have so many numbers; None without a drafter that reads memory. `widths`:
    numbers of a row of each plane, starting with the plane that drafts need most. `narrow`: that memory rows may have
    too; 0: they are all whole.
    """

    def __init__(
        self,
        take_rows: Callable[[Memory, int], None] | None,
        widths: Mapping[Plane, int],
        codec: Codec,
        narrow: int = 0,
    ) -> None:
        self.hold_until_ms = 0.0  # no drafting before the newest row, or this time
        self.thin: ThinMemory | None = None  # the rows that the server was asked for; None: all
        self._take_rows = take_rows
        self._codec = codec
        self._widths = widths
        self._narrow = narrow
        self._has_states = next(iter(widths), None) is Plane.REUSED_STATE  # and needs all of them
        self._answer_start, self._verdict_ms = 0, 0.0
        self._owed = 0  # bytes received but not yet reported to the server
        self._row_lag = Smoothed(FIRST_ROW_LAG_MS)  # from a verdict to its memory row
        self.restart()

    def restart(self) -> None:
        self._rows = {plane: RowsHeld() for plane in self._widths} if self._take_rows is not None else {}
        self._first = next(iter(self._rows.values()), RowsHeld())  # of the plane that drafts need most

    def stop(self) -> None:
        """No server has memory for the drafter any more: nothing is asked for, or waited for."""
        self._take_rows, self.hold_until_ms = None, 0.0
        self.restart()

    @property
    def fewest(self) -> ThinMemory | None:
        """The rows that are enough while the device drafts nothing; None: no memory is wanted."""
        if not self._rows:
            return None
        return (
            THIN if self._has_states else NO_ROWS
        )  # states between a few are predicted; single rows are worth nothing

    @property
    def offered(self) -> list[int]:
        """Codecs for Open; none: no memory is wanted."""
        return [self._codec.value] if self._rows else []

    def first_missing(self, length: int) -> int:
        """The first of `length` positions whose rows a server should resend: of the plane that drafts need most."""
        return min(self._first.first_missing, length)

    def on_opened(self, codec: int) -> None:
        if codec not in (0, *self.offered):
            expected = f"memory in {self._codec.name.lower()}" if self._rows else "no memory"
            raise ProtocolError(expected, f"codec {codec}")
        self._owed = 0

    def change(self, now: float, thin: ThinMemory | None) -> None:
        """The server is asked for these rows from now on; with all of them again, drafting waits for the prompt's."""
        was_thin, self.thin = self.thin is not None, thin
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
        held = self._first.first_missing if self._has_states else self._first.stop
        return bool(self._rows) and held < self._answer_start

    def hold(self, now: float, before: int, most_ms: float) -> None:
        """Makes drafting wait for the row of the newest token, as long as that usually takes, at most `most_ms`.

        `before`: tokens before the newest verdict. If their rows were late already, none is waited for: a server that
        has no time for memory would keep the drafter from ever drafting.
        """
        if self._rows and self._first.stop >= before - 1 and not self.lacks_prompt:
            self.hold_until_ms = now + min(most_ms, self._row_lag.high)

    def on_verdict(self, now: float) -> None:
        self._verdict_ms = now

    def on_memory(self, now: float, memory: Memory, hashes: PrefixHashes) -> int:
        """Takes in a frame; the bytes to credit now, if it is time."""
        before, lacked = self._first.stop, self.lacks_prompt
        self._take(memory, hashes)
        if before < self._first.stop == len(hashes) - 1 and not lacked:
            self._row_lag.add(now - self._verdict_ms)
            self.hold_until_ms = 0.0
        if lacked and not self.lacks_prompt:
            self.hold_until_ms = 0.0
        self._owed += len(memory.payload)
        if self._owed < CREDIT_EVERY_BYTES:
            return 0
        owed, self._owed = self._owed, 0
        return owed

    def _take(self, memory: Memory, hashes: PrefixHashes) -> None:
        """Checks a frame, and has it read; one for other tokens (in flight when they changed) is ignored."""
        rows = self._rows.get(memory.plane)
        if rows is None or self._take_rows is None:
            raise ProtocolError("no memory that was not asked for", f"memory of plane {memory.plane}")
        if memory.codec is not self._codec:
            raise ProtocolError(f"memory in {self._codec.name.lower()}", memory.codec.name.lower())
        stop = memory.start + memory.count
        if stop > len(hashes):
            raise ProtocolError(f"memory of positions before {len(hashes)}", f"{memory.start} to {stop - 1}")
        if memory.prefix_hash == hashes.short_at(stop):
            is_narrow = self._narrow and len(memory.payload) == memory.count * row_bytes(memory.codec, self._narrow)
            is_narrow = is_narrow and memory.plane is Plane.MEMORY
            self._take_rows(memory, self._narrow if is_narrow else self._widths[memory.plane])
            rows.add(memory.start, stop)

    def crop(self, length: int) -> None:
        """The drafter has forgotten what it knew from position `length` on."""
        for rows in self._rows.values():
            rows.crop(length)
