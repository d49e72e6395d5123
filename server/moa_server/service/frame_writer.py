"""What a stream has to write: verdicts and other small frames first, memory with or after them as the credit allows.

State: queued verdicts and frames, the memory that is followed, and rows of it that are coded. Invariants: memory never
goes before a queued verdict; of beats only the newest is kept, verdicts that continue each other are one, one that may
linger waits for others, and no more than QUEUE_BYTES wait.
A verdict becomes a frame when it is written, so that it can leave out what the frame before it implies.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import grpc.aio
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol.messages import Memory, Plane, Verdict
from moa_shared.protocol.protobuf_messages import VerdictFrames, memory_to_proto

from moa_server.engine.live_session import FrameBytes, Observer
from moa_server.engine.stepper import CodedRows
from moa_server.session.memory_feed import START_BYTES, Chunk, MemoryFeed

LEAST_RATE = 256.0  # bytes a second; GPRS carries ten times as much

Sent = TypeVar("Sent", bound=Message)


class BoundedWriter(Generic[Sent]):
    """Writes one call's messages, as long as its client takes them in: waiting adds up, bytes that it takes pay for it.

    `patience_seconds`: how long a client may read almost nothing.
    """

    def __init__(
        self,
        write: Callable[[Sent], Awaitable[None]],
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._patience_seconds = patience_seconds
        self._owed_seconds = 0.0
        self._clock = clock

    async def write(self, message: Sent) -> int:
        """Writes one message; returns how many bytes it had."""
        began = self._clock()
        try:
            async with asyncio.timeout(max(0.0, self._patience_seconds - self._owed_seconds)):
                await self._write(message)
        except TimeoutError:
            words = f"The client has read almost nothing for {self._patience_seconds:g} s."
            raise UnavailableError(words, hint="Call again to resume.") from None
        except grpc.aio.BaseError:
            raise UnavailableError("The connection to the client broke.") from None
        nbytes = message.ByteSize()
        self._owed_seconds = max(0.0, self._owed_seconds + self._clock() - began - nbytes / LEAST_RATE)
        return nbytes


QUEUE_BYTES = 1 << 20  # of small frames: an answer of 250,000 tokens that is resumed by a client that has none of them

LINGER_MS = 50.0  # a frame costs server and device about as much Python as a step, and no eye sees so short a wait

VERDICT_BYTES, TOKEN_BYTES = 40, 3  # of a verdict without tokens, and of each of its tokens


def merge_verdicts(earlier: Verdict, later: Verdict) -> Verdict | None:
    """A verdict and the one that continues it, as one; None if it continues another.

    It has the costs and the price of the newest step and counts what all steps verified.
    """
    if earlier.finish or earlier.ask != later.ask or later.base != earlier.base + len(earlier.tokens):
        return None
    return replace(
        later,
        base=earlier.base,
        prefix_hash=earlier.prefix_hash,
        tokens=[*earlier.tokens, *later.tokens],
        accepted=earlier.accepted + later.accepted,
        drafted=earlier.drafted + later.drafted,
        stale=earlier.stale + later.stale,
        server_drafted=earlier.server_drafted + later.server_drafted,
        server_accepted=earlier.server_accepted + later.server_accepted,
        chances=(*earlier.chances, *later.chances) if bool(earlier.chances) is bool(later.chances) else (),
    )


class RowSource(NamedTuple):
    """Where the memory of a stream comes from.

    `code`: codes a chunk; `may_code`: whether there is time to encode rows now; if not, the stream is told when there
    is; `hash_at`: hash of the conversation's first tokens, its low half; names the state that memory belongs to.
    """

    feed: MemoryFeed
    code: Callable[[Chunk], asyncio.Future[CodedRows]]
    may_code: Callable[[], bool]
    hash_at: Callable[[int], int]


class FrameWriter:
    """Writes the frames of one stream. `write_seconds`: how long a client may read almost nothing."""

    def __init__(
        self,
        write: Callable[[pb.ServerFrame], Awaitable[None]],
        write_seconds: float,
        observer: Observer | None = None,
    ) -> None:
        self._writer = BoundedWriter(write, write_seconds)
        self._observer = observer or Observer()
        self._verdicts = VerdictFrames()
        self._urgent: deque[Verdict | pb.ServerFrame] = deque()
        self._urgent_bytes = 0
        self._beat: pb.ServerFrame | None = None
        self._source: RowSource | None = None
        self._coded: list[CodedRows] = []  # a verdict takes them along
        self._held: list[CodedRows] = []  # which wait for a verdict to take them along
        self._coding: tuple[Chunk, asyncio.Future[CodedRows]] | None = None
        self._rows_in_frame: list[Memory] = []  # that the next frame written holds
        self._poke = asyncio.Event()
        self._lingering: asyncio.TimerHandle | None = None
        self._closing = False
        self._failure: MoaError | None = None

    # ------------------------------------------------------------ what there is to write

    def put_verdict(self, verdict: Verdict, *, lingers: bool = False) -> None:
        """Queues a verdict, or merges it into the one that waits before it; `lingers`: it need not leave at once."""
        if not lingers:
            self.put(verdict)
        elif self.put(verdict, is_due=False) and self._lingering is None:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_MS / 1e3, self._poke.set)

    def put(self, item: Verdict | pb.ServerFrame, *, is_due: bool = True) -> bool:
        self._urgent_bytes += _size(item)
        if self._urgent_bytes > QUEUE_BYTES:
            self._urgent.clear()
            self._urgent_bytes = 0
            words = f"The client has left {QUEUE_BYTES} bytes unread."
            self.fail(UnavailableError(words, hint="Keep reading, or open a new stream to resume."))
            return False
        before = self._urgent[-1] if self._urgent else None
        if isinstance(item, Verdict) and isinstance(before, Verdict) and (merged := merge_verdicts(before, item)):
            self._urgent[-1] = merged
        else:
            self._urgent.append(item)
        if is_due:
            self._poke.set()
        return True

    def put_beat(self, stamp: int) -> None:
        self._beat = pb.ServerFrame(beat=pb.Beat(stamp=stamp, reply=True))
        self._poke.set()

    def follow(self, source: RowSource) -> None:
        """Writes memory, too, from now on."""
        self._source = source
        self._poke.set()

    def unfollow(self) -> None:
        if self._coding is not None:
            self._coding[1].cancel()
        self._source, self._coding, self._coded, self._held = None, None, [], []

    def poke(self) -> None:
        self._poke.set()

    def put_rows(self, newest: CodedRows, *, with_verdict: bool) -> None:
        """Queues rows that are coded already, if the feed still owes them and the credit allows.

        `with_verdict`: they wait for the next verdict, which is sure to come, rather than go in a frame of their own.
        """
        if self._source is not None and self._source.feed.claim(newest.chunk):
            (self._held if with_verdict else self._coded).append(newest)
        if not with_verdict:
            self._poke.set()

    def void(self, length: int) -> None:
        """Takes back unwritten memory rows from position `length` on, which are void."""
        if self._source is None:
            return
        feed = self._source.feed
        for rows in self._take_rows(lambda stop: stop > length):
            feed.take_back(rows.chunk.nbytes)
        if self._coding is not None:
            chunk, future = self._coding
            if chunk.start + chunk.count > length:
                future.cancel()
                feed.take_back(chunk.nbytes)
                self._coding = None

    def close(self) -> None:
        self._closing = True
        self._poke.set()

    def fail(self, error: MoaError) -> None:
        self._failure = error
        self._poke.set()

    # ------------------------------------------------------------ writing

    async def write_frames(self) -> None:
        try:
            while True:
                await self._poke.wait()
                self._poke.clear()
                if self._lingering is not None:
                    self._lingering.cancel()
                    self._lingering = None
                while (frame := self._next_frame()) is not None:
                    self._count(await self._writer.write(frame))
                if self._failure is not None:
                    raise self._failure
                if self._closing:
                    return
        finally:
            if self._lingering is not None:
                self._lingering.cancel()
            self.unfollow()

    def _next_frame(self) -> pb.ServerFrame | None:
        if self._urgent:
            item = self._urgent.popleft()
            self._urgent_bytes = self._urgent_bytes - _size(item) if self._urgent else 0
            if not isinstance(item, Verdict):
                return item
            if self._source is not None and (self._coded or self._held):
                self._add_rows(self._source, item.base + len(item.tokens))
            return self._verdicts.frame_of(item, self._rows_in_frame)
        if self._beat is not None:
            frame, self._beat = self._beat, None
            return frame
        if self._source is None or self._closing or self._failure is not None:
            return None
        if (rows := self._next_rows(self._source)) is None:
            return None
        memory = _message(self._source, rows)
        self._rows_in_frame.append(memory)
        return pb.ServerFrame(memory=memory_to_proto(memory))

    def _add_rows(self, source: RowSource, end: int) -> None:
        """Lets the coded rows leave with a verdict whose last token ends there, unless they are too many.

        It is read when all of its frame has come, and a connection that was at rest sends little more than START_BYTES
        before anything is acknowledged.
        """
        rows = self._take_rows(lambda stop: stop <= end)
        if sum(each.chunk.nbytes for each in rows) > START_BYTES:
            self._coded[:0] = rows
        else:
            self._rows_in_frame += [_message(source, each) for each in rows]

    def _next_rows(self, source: RowSource) -> CodedRows | None:
        """The next rows for a frame of their own; None: there are none, or they are being coded."""
        if self._coded:
            return self._coded.pop(0)
        if self._coding is None:
            chunk = source.feed.take(encodes=source.may_code()) if source.feed.may_owe else None
            if chunk is None:
                return None
            self._coding = chunk, source.code(chunk)
            self._coding[1].add_done_callback(self._on_coded)
        future = self._coding[1]
        if not future.done():
            return None
        self._coding = None
        return future.result()

    def _take_rows(self, belongs: Callable[[int], bool]) -> list[CodedRows]:
        """Takes the coded rows out whose end is such a position."""
        taken: list[CodedRows] = []
        for queue in (self._coded, self._held):
            taken += [rows for rows in queue if belongs(rows.chunk.start + rows.chunk.count)]
            queue[:] = [rows for rows in queue if not belongs(rows.chunk.start + rows.chunk.count)]
        return taken

    def _on_coded(self, future: asyncio.Future[CodedRows]) -> None:
        if not future.cancelled():
            future.exception()  # seen, even if the stream ends before it is asked for the rows
        self._poke.set()

    def _count(self, nbytes: int) -> None:
        rows, self._rows_in_frame = self._rows_in_frame, []
        for each in rows:
            kind = FrameBytes.MEMORY if each.plane is Plane.MEMORY else FrameBytes.STATE
            self._observer.on_sent(kind, len(each.payload))
            nbytes -= len(each.payload)
        self._observer.on_sent(FrameBytes.VERDICTS, nbytes)


def _message(source: RowSource, rows: CodedRows) -> Memory:
    chunk = rows.chunk
    prefix_hash = source.hash_at(chunk.start + chunk.count)
    return Memory(chunk.start, chunk.count, chunk.codec, rows.payload, chunk.plane, prefix_hash)


def _size(item: Verdict | pb.ServerFrame) -> int:
    """Bytes that it may take."""
    return VERDICT_BYTES + TOKEN_BYTES * len(item.tokens) if isinstance(item, Verdict) else item.ByteSize()
