"""What of a session's memory a client is to have: rows of each plane, kept, and which part to send next.

Kept rows: pages by position, which rows are held, and the newest ones that no page holds yet; owned by the inference
thread. They come in any order: the newest of a prompt first. Invariants: each held row belongs to the token that the KV
cache holds there; a page that another store holds too is never written, but copied first.

What to send is pure: two planes, one credit. Few bytes may be in flight at first, and as many more as the client has
taken in, up to the credit. Invariants: no chunk is given while the bytes in flight reach that, and none is claimed that
does not fit into the credit; rows that a forward yields go before those that must be encoded; what a thin memory leaves
out stays owed, for when the client wants all.

The most useful rows go first. Without the states of the prompt a deep drafter guesses 5 % of first tokens, with them
and one row of memory 72 %, with all memory rows 72 % too; the online one 17, 46 and 50 %. A state costs 0.1 ms, a
memory row 0.7 ms.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from moa_kernels import PAGE_ROWS, Page
from moa_shared.errors import InternalError
from moa_shared.protocol.memory_codec import Codec, round_to_bfloat16, row_bytes, widen_bfloat16
from moa_shared.protocol.messages import Plane, ThinMemory

from moa_server.settings import MEMORY_SHARE

Rows = npt.NDArray[np.float32]

# Put into pages at once: one by one, the states of each step took as long as the rest of an answer's part in a forward,
# and most of them are never read.
PAGED_TOGETHER = 32


class OwnPlane(Enum):
    """Rows that are kept, and never sent."""

    STATE = "the state that enters the first layer which the server's drafter reuses, where the device's reuses others"


KeptPlane = Plane | OwnPlane


def most_nbytes(width: int, rows: int) -> int:
    """The most bytes that a store of `rows` rows takes."""
    return 2 * width * PAGE_ROWS * -(-rows // PAGE_ROWS)


class RowStore:
    """Rows of `width` numbers, in bf16: the most exact codec of the wire."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._pages: list[Page | None] = []
        self._held = bytearray()  # 1 where the row is held
        self._new: list[Rows] = []  # rows of the positions from the one to before the other, in no page yet
        self._new_start = self._new_stop = 0

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in tuple(self._pages) if page is not None)

    def crop(self, length: int) -> None:
        if length < self._new_stop:
            if length <= self._new_start:
                self._new.clear()
            self._settle()
        del self._held[length:]
        first = -(-length // PAGE_ROWS)
        for page in self._pages[first:]:
            if page is not None:
                page.let_go()
        del self._pages[first:]

    def full_page(self, number: int) -> Page:
        """The page of the rows from 64 * `number` on, for others to hold."""
        start = number * PAGE_ROWS
        is_full = self.first_missing(start, start + PAGE_ROWS) == start + PAGE_ROWS
        page = self._pages[number] if is_full else None
        if page is None:
            raise InternalError(f"Page {number} of a store of rows is not full.")
        return page

    def replace_page(self, number: int, page: Page) -> None:
        """Holds `page`, whose rows are the same, in place of a full page."""
        before = self.full_page(number)
        self._pages[number] = page.hold()
        before.let_go()

    def adopt(self, pages: Sequence[Page]) -> None:
        self.crop(0)
        self._pages.extend(page.hold() for page in pages)
        self._held.extend(b"\x01" * (len(pages) * PAGE_ROWS))

    def write(self, start: int, rows: Rows) -> None:
        if not self._new or start != self._new_stop:
            self._settle()
            self._new_start = start
        self._new.append(rows)
        self._new_stop = start + rows.shape[0]
        if self._new_stop - self._new_start >= PAGED_TOGETHER:
            self._settle()

    def _settle(self) -> None:
        if not self._new:
            return
        start, stop = self._new_start, self._new_stop
        rounded = round_to_bfloat16(np.concatenate(self._new))
        self._new.clear()
        self._pages.extend([None] * (-(-stop // PAGE_ROWS) - len(self._pages)))
        for number, first, last in _parts(start, stop):
            page = self._pages[number]
            page = Page(2 * self.width * PAGE_ROWS) if page is None else page.writable()
            self._pages[number] = page
            before = number * PAGE_ROWS
            self._bits(page)[first - before : last - before] = rounded[first - start : last - start]
        self._held.extend(bytes(max(0, stop - len(self._held))))
        self._held[start:stop] = b"\x01" * (stop - start)

    def first_missing(self, start: int, stop: int) -> int:
        """The first position of `start` to `stop` whose row is not held; `stop` where all are."""
        self._settle()
        missing = self._held.find(0, start, stop)
        return missing if missing >= 0 else min(stop, max(start, len(self._held)))

    def read(self, start: int, stop: int) -> Rows:
        """[stop - start, width] float32, as rounded to bf16."""
        if not 0 <= start <= stop or self.first_missing(start, stop) < stop:
            raise InternalError(f"Rows {start}..{stop} were requested from a store that does not hold them all.")
        rows = np.empty((stop - start, self.width), np.uint16)
        for number, first, last in _parts(start, stop):
            if (page := self._pages[number]) is not None:
                before = number * PAGE_ROWS
                rows[first - start : last - start] = self._bits(page)[first - before : last - before]
        return widen_bfloat16(rows)

    def _bits(self, page: Page) -> npt.NDArray[np.uint16]:
        """[64, width] bit patterns of bf16; a view."""
        return page.data.view(np.uint16).reshape(PAGE_ROWS, self.width)


def _parts(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The pages that `start` to `stop` lies in: the number of each, and which of the positions are in it."""
    for number in range(start // PAGE_ROWS, -(-stop // PAGE_ROWS)):
        yield number, max(start, number * PAGE_ROWS), min(stop, (number + 1) * PAGE_ROWS)


GAIN = 1 / 32  # of the time that drafts have saved: all rows raise the acceptance by 0 to 4 % over a few (feed.py)
LOAN_STEPS = 0.3  # plain steps: one chunk, of the newest rows of the prompt, without which a drafter has no memory


class MemoryBudget:
    """The time that one answer's memory may take.

    `share`: of an answer's time that memory may take even if no draft is right; 1: all rows are sent. `plain_ms`: the
    time of a plain step until one has been measured; None: there is no limit until then.
    """

    def __init__(self, share: float = MEMORY_SHARE, plain_ms: float | None = None) -> None:
        self.share = share
        self._balance_ms = 0.0
        self._plain_ms = plain_ms

    def begin_answer(self) -> None:
        self._balance_ms = 0.0

    def on_step(self, step_ms: float, tokens: int, plain_ms: float) -> None:
        """A forward has committed tokens. `plain_ms`: how long a plain step takes."""
        self._plain_ms = plain_ms
        saved_ms = max(0.0, tokens * plain_ms - step_ms)
        self._balance_ms += self.share * step_ms + GAIN * saved_ms

    def on_encoded(self, ms: float) -> None:
        """Charges time that encoding took while a forward waited."""
        self._balance_ms -= ms

    @property
    def allows_newest(self) -> bool:
        """Whether rows of the newest tokens may be encoded: they are worth the most, and have the whole loan."""
        return self._plain_ms is None or self._balance_ms > -LOAN_STEPS * self._plain_ms

    @property
    def allows_older(self) -> bool:
        """Whether rows of older tokens may be encoded before there is idle time: half of the loan is theirs."""
        return self._plain_ms is None or self._balance_ms > -LOAN_STEPS * self._plain_ms / 2


CHUNK_BYTES = 32 * 1024  # of one Memory frame: 13 ms of a 20 Mbit/s link, which is how long a verdict may wait for it
# In flight on a new stream. A new connection sends 14,600 bytes (RFC 6928) before anything is acknowledged,
# and then twice as many each round trip; verdicts behind more memory than that would come a round trip late.
START_BYTES = 10 * 1024
CHUNK_ROWS = 4  # rows encoded at once: a quarter of a plain step of the default target, which is how long it waits


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `start` to `start + count` of a plane, to be sent in `codec`; `width`: their first numbers only; 0: all."""

    plane: Plane
    start: int
    count: int
    codec: Codec
    nbytes: int
    width: int = 0


class MemoryFeed:
    """The memory that one stream still owes its client.

    `credit_bytes`: payload that may come to be in flight. `start`: first position that the client lacks. `thin`: the
    rows that are enough for it; None: it wants all. `encoded`: planes whose rows take the inference thread's time; rows
    of the others a forward yields. `narrow`: of an assistant, how many of the newest memory rows are sent whole, and
    the numbers of the others; of its states the newest is sent alone.
    """

    def __init__(
        self,
        widths: Mapping[Plane, int],
        codec: Codec,
        credit_bytes: int,
        start: int = 0,
        *,
        thin: ThinMemory | None = None,
        encoded: Collection[Plane] = (Plane.MEMORY,),
        narrow: tuple[int, int] | None = None,
    ) -> None:
        self.codec = codec
        self.thin = thin
        self.encoded = tuple(sorted(widths.keys() & set(encoded)))
        self.yielded = tuple(sorted(widths.keys() - set(encoded)))
        self.in_flight_bytes = 0
        self.may_owe = True  # False: nothing has become due since all was given
        self._readable = start  # rows before this position can be made now
        self._credit_bytes = credit_bytes
        self._window_bytes = min(credit_bytes, START_BYTES)
        self._widths = dict(widths)
        self._narrow, self._newest = narrow, frozenset({Plane.REUSED_STATE} if narrow else ())
        self._narrow_stop = 0  # after the last row that was not sent whole
        # Of each position whose row has been ready, 1 while it is not sent; in the order in which planes go.
        self._unsent = {plane: bytearray(start) for plane in (*self.yielded, *self.encoded)}

    @property
    def has_room(self) -> bool:
        return self.in_flight_bytes < self._window_bytes

    def owes(self, stop: int) -> bool:
        """Whether the client lacks rows before `stop` without which a draft is hopeless.

        Those are all rows of a plane that a forward yields, and only the newest of an encoded one.
        """
        plane, unsent = next(iter(self._unsent.items()))
        needs_all = plane in self.yielded and plane not in self._newest
        return len(unsent) < stop or unsent.find(1, 0 if needs_all else stop - 1, stop) >= 0

    def rows_ready(self, stop: int) -> None:
        self.may_owe = self.may_owe or self.thin is None or self.thin.owes_more(self._readable, stop)
        self._readable = max(self._readable, stop)
        for unsent in self._unsent.values():
            unsent.extend(b"\x01" * (stop - len(unsent)))

    def on_forgotten(self, length: int) -> None:
        """What rows from position `length` on are made from is gone: those not sent wait until it is read again."""
        self._readable = min(self._readable, length)

    def wants_states_from(self, position: int) -> bool:
        """Whether states from there on may be sent."""
        return self.thin is None or self.thin.states > position

    def crop(self, length: int) -> None:
        """Positions from `length` on no longer exist; what comes there again is new."""
        self.may_owe = True
        self._readable = min(self._readable, length)
        for unsent in self._unsent.values():
            del unsent[length:]
        if self._narrow is not None:  # a window sees these again
            first = max(0, length - self._narrow[0])
            again = min(length, self._narrow_stop) - first
            self._unsent[Plane.MEMORY][first : first + max(0, again)] = b"\x01" * max(0, again)
            self._narrow_stop = min(self._narrow_stop, first)

    def want(self, thin: ThinMemory | None) -> None:
        """Changes which rows are enough for the client; None: it wants all."""
        self.thin, self.may_owe = thin, True

    def on_credit(self, count: int) -> None:
        self.take_back(count)
        self._window_bytes = min(self._credit_bytes, self._window_bytes + count)

    def take_back(self, count: int) -> None:
        """So many bytes of rows that were given will not be sent."""
        self.may_owe = True
        self.in_flight_bytes = max(0, self.in_flight_bytes - count)

    def most_rows(self, plane: Plane) -> int:
        if plane in self._newest:
            return 1
        fitting = min(CHUNK_BYTES, self._window_bytes) // row_bytes(self.codec, self._widths[plane])
        return max(1, min(fitting, CHUNK_ROWS) if plane in self.encoded else fitting)

    def ready(self, plane: Plane) -> int:
        return len(self._unsent[plane])

    def unsent_before(self, plane: Plane, stop: int) -> int:
        """The start of the run of unsent rows that ends at `stop`; `stop` if there is none."""
        unsent = self._unsent[plane]
        return unsent.rfind(0, 0, stop) + 1 if len(unsent) >= stop else stop

    def claim(self, chunk: Chunk) -> bool:
        """Takes just this chunk, which is coded already; False if it is no longer owed, or the credit is used up."""
        fits = not self.in_flight_bytes or self.in_flight_bytes + chunk.nbytes <= self._credit_bytes
        unsent, start, stop = self._unsent[chunk.plane], chunk.start, chunk.start + chunk.count
        exists = stop <= min(self._readable, len(unsent))
        if chunk.codec is not self.codec or not fits or not exists or unsent.find(0, start, stop) >= 0:
            return False
        unsent[start:stop] = bytes(chunk.count)
        self.in_flight_bytes += chunk.nbytes
        return True

    def take(self, *, encodes: bool = True) -> Chunk | None:
        """The next chunk, the newest rows first, which counts as in flight; None if nothing may be sent.

        `encodes`: whether there is time for planes whose rows take some.
        """
        waits = False
        for plane, unsent in self._unsent.items():
            begin, stop = (0, self._readable) if self.thin is None else self.thin.owed(plane, self._readable)
            if plane in self._newest:
                begin = max(begin, self._readable - 1)
            if not (stop := unsent.rfind(1, begin, stop) + 1):
                continue
            if plane in self.encoded and not encodes:
                waits = True
                continue
            width = 0
            if self._narrow is not None and plane is Plane.MEMORY:
                whole = max(0, self._readable - self._narrow[0])  # from here on
                begin, width = (max(begin, whole), width) if stop > whole else (begin, self._narrow[1])
            size = row_bytes(self.codec, width or self._widths[plane])
            room = (self._window_bytes - self.in_flight_bytes) // size
            if self.in_flight_bytes == 0:
                room = max(room, 1)  # a credit below one row must not stop memory for good
            if room < 1:
                return None  # the credit is used up
            start = max(unsent.rfind(0, begin, stop) + 1, begin, stop - min(self.most_rows(plane), room))
            unsent[start:stop] = bytes(stop - start)
            if width:
                self._narrow_stop = max(self._narrow_stop, stop)
            nbytes = (stop - start) * size
            self.in_flight_bytes += nbytes
            return Chunk(plane, start, stop - start, self.codec, nbytes, width)
        self.may_owe = waits and self.thin is None  # few rows wait until more are due, or there is spare time
        return None
