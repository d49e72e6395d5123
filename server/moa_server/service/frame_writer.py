"""What a stream has to write: verdicts and other small frames first, memory with or after them as the credit allows.

State: queued verdicts and frames, rows that are coded already, the chunk being coded. Invariants: memory never goes
before a queued verdict; one chunk at most is coded on demand; of beats only the newest is kept, verdicts that continue
each other are one, and no more than QUEUE_BYTES wait. A verdict becomes a frame when it is written, so that it can
leave out what the frame before it implies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol.continued_frames import VerdictWriter
from moa_shared.protocol.messages import Memory, Plane, Verdict
from moa_shared.protocol.protobuf_messages import memory_to_proto

from moa_server.engine.observer import Bytes, Observer
from moa_server.engine.stepper import CodedRows
from moa_server.memory.feed import START_BYTES, Chunk, MemoryFeed
from moa_server.service.bounded_writer import BoundedWriter
from moa_server.service.frames import memory_of, merge_verdicts

QUEUE_BYTES = 1 << 20  # of small frames: an answer of 250,000 tokens that is resumed by a client that has none of them

VERDICT_BYTES, TOKEN_BYTES = 40, 3  # of a verdict without tokens, and of each of its tokens


class FrameWriter:
    """Writes the frames of one stream.

    Args:
        write: hands one frame to gRPC.
        code: makes the bytes of a chunk of memory.
        hash_at: hash of the conversation's first tokens, its low half; names the state that memory belongs to.
        may_code: whether there is time to encode some now; if not, `poke` is called later.
        write_seconds: how long a client may read almost nothing.
        observer: learns what was written; None: nobody does.
    """

    def __init__(
        self,
        write: Callable[[pb.ServerFrame], Awaitable[None]],
        code: Callable[[Chunk], asyncio.Future[CodedRows]],
        hash_at: Callable[[int], int],
        may_code: Callable[[], bool],
        write_seconds: float,
        observer: Observer | None = None,
    ) -> None:
        self._writer = BoundedWriter(write, write_seconds)
        self._code = code
        self._observer = observer or Observer()
        self._rows_in_frame: list[tuple[Plane, int]] = []  # bytes of rows that the next frame written holds
        self._hash_at = hash_at
        self._may_code = may_code
        self._feed: MemoryFeed | None = None
        self._verdicts = VerdictWriter()
        self._urgent: deque[Verdict | pb.ServerFrame] = deque()
        self._urgent_bytes = 0
        self._beat: pb.ServerFrame | None = None
        self._coded: list[CodedRows] = []  # of the feed's rows, which has given them; a verdict takes them along
        self._held: list[CodedRows] = []  # which wait for a verdict to take them along
        self._coding: tuple[Chunk, asyncio.Future[CodedRows]] | None = None
        self._poke = asyncio.Event()
        self._closing = False
        self._failure: MoaError | None = None

    # ------------------------------------------------------------ what there is to write

    def put(self, frame: pb.ServerFrame) -> None:
        """Queues a small frame, which overtakes memory."""
        self._queue(frame)

    def put_verdict(self, verdict: Verdict) -> None:
        """Queues a verdict, or merges it into the one that waits before it."""
        self._queue(verdict)

    def _queue(self, item: Verdict | pb.ServerFrame) -> None:
        self._urgent_bytes += _size(item)
        if self._urgent_bytes > QUEUE_BYTES:
            self._urgent.clear()
            self._urgent_bytes = 0
            self.fail(
                UnavailableError(
                    f"The client has left {QUEUE_BYTES} bytes unread.",
                    hint="Keep reading, or open a new stream to resume.",
                )
            )
            return
        before = self._urgent[-1] if self._urgent else None
        if isinstance(item, Verdict) and isinstance(before, Verdict) and (merged := merge_verdicts(before, item)):
            self._urgent[-1] = merged
        else:
            self._urgent.append(item)
        self._poke.set()

    def put_beat(self, stamp: int) -> None:
        """Answers a beat, in place of an answer that is not yet written."""
        self._beat = pb.ServerFrame(beat=pb.Beat(stamp=stamp, reply=True))
        self._poke.set()

    def follow(self, feed: MemoryFeed | None) -> None:
        """Writes the memory that `feed` gives from now on; None: no more memory."""
        self._feed, self._coded, self._held = feed, [], []
        self._poke.set()

    def poke(self) -> None:
        """The feed has more to give."""
        self._poke.set()

    def put_rows(self, newest: CodedRows, *, with_verdict: bool) -> None:
        """Queues rows that are coded already, if the feed still owes them and the credit allows.

        Args:
            with_verdict: they wait for the next verdict, which is sure to come, rather than go in a frame of their own.
        """
        if self._feed is not None and self._feed.claim(newest.chunk):
            (self._held if with_verdict else self._coded).append(newest)
        if not with_verdict:
            self._poke.set()

    def void(self, length: int) -> None:
        """Takes back unwritten memory rows from position `length` on, which are void."""
        for rows in self._take_coded(lambda stop: stop > length):
            if self._feed is not None:
                self._feed.take_back(rows.chunk.nbytes)
        if self._coding is not None and self._feed is not None:
            chunk, future = self._coding
            if chunk.start + chunk.count > length:
                future.cancel()
                self._feed.take_back(chunk.nbytes)
                self._coding = None

    def close(self) -> None:
        """Ends `run` once the small frames are written."""
        self._closing = True
        self._poke.set()

    def fail(self, error: MoaError) -> None:
        """Ends `run` with an error."""
        self._failure = error
        self._poke.set()

    # ------------------------------------------------------------ writing

    async def run(self) -> None:
        """Writes until closed.

        Raises:
            UnavailableError: the client takes nothing in.
            MoaError: what `fail` was given, or what made coding fail.
        """
        try:
            while True:
                await self._poke.wait()
                self._poke.clear()
                while (frame := self._next()) is not None:
                    self._count(await self._writer.write(frame))
                if self._failure is not None:
                    raise self._failure
                if self._closing:
                    return
        finally:
            if self._coding is not None:
                self._coding[1].cancel()

    def _next(self) -> pb.ServerFrame | None:
        if self._urgent:
            item = self._urgent.popleft()
            self._urgent_bytes = self._urgent_bytes - _size(item) if self._urgent else 0
            return self._verdict_frame(item) if isinstance(item, Verdict) else item
        if self._beat is not None:
            frame, self._beat = self._beat, None
            return frame
        if self._closing or self._failure is not None:
            return None
        return self._next_memory()

    def _verdict_frame(self, verdict: Verdict) -> pb.ServerFrame:
        """A verdict, with the coded rows that are not of a later one in the queue; after it those that are too many.

        It is read when all of its frame has come, and a connection that was at rest sends little more than START_BYTES
        before anything is acknowledged.
        """
        end = verdict.base + len(verdict.tokens)
        rows = self._take_coded(lambda stop: stop <= end)
        carried = rows if sum(each.chunk.nbytes for each in rows) <= START_BYTES else []
        if not carried:
            self._coded[:0] = rows
        return pb.ServerFrame(verdict=self._verdicts.write(verdict, [self._memory(each) for each in carried]))

    def _take_coded(self, belongs: Callable[[int], bool]) -> list[CodedRows]:
        """Takes the coded rows out whose end is such a position."""
        taken: list[CodedRows] = []
        for queue in (self._coded, self._held):
            if queue:
                taken += [rows for rows in queue if belongs(rows.chunk.start + rows.chunk.count)]
                queue[:] = [rows for rows in queue if not belongs(rows.chunk.start + rows.chunk.count)]
        return taken

    def _begin_coding(self, chunk: Chunk) -> asyncio.Future[CodedRows]:
        future = self._code(chunk)
        future.add_done_callback(self._on_coded)
        self._coding = (chunk, future)
        return future

    def _on_coded(self, future: asyncio.Future[CodedRows]) -> None:
        if not future.cancelled():
            future.exception()  # seen, even if the stream ends before it is asked for the rows
        self._poke.set()

    def _next_memory(self) -> pb.ServerFrame | None:
        if self._feed is None:
            return None
        if self._coded:
            return self._memory_frame(self._coded.pop(0))
        if self._coding is None:
            chunk = self._feed.take(encodes=self._may_code())
            if chunk is None:
                return None
            future = self._begin_coding(chunk)
        else:
            future = self._coding[1]
        if not future.done():
            return None
        self._coding = None
        return self._memory_frame(future.result())

    def _memory_frame(self, rows: CodedRows) -> pb.ServerFrame:
        return pb.ServerFrame(memory=memory_to_proto(self._memory(rows)))

    def _count(self, nbytes: int) -> None:
        rows, self._rows_in_frame = self._rows_in_frame, []
        for plane, count in rows:
            self._observer.on_sent(Bytes.MEMORY if plane is Plane.MEMORY else Bytes.STATE, count)
            nbytes -= count
        self._observer.on_sent(Bytes.VERDICTS, nbytes)

    def _memory(self, rows: CodedRows) -> Memory:
        self._rows_in_frame.append((rows.chunk.plane, rows.chunk.nbytes))
        return memory_of(rows, self._hash_at(rows.chunk.start + rows.chunk.count))


def _size(item: Verdict | pb.ServerFrame) -> int:
    """Bytes that it may take."""
    return VERDICT_BYTES + TOKEN_BYTES * len(item.tokens) if isinstance(item, Verdict) else item.ByteSize()
