"""What a stream has to write: verdicts and other small frames first, memory with or after them as the credit allows.

State: queued frames, rows that are coded already, the chunk being coded. Invariants: memory never goes before a queued
verdict; one chunk at most is coded ahead; of beats only the newest is kept, verdicts that continue each other are one,
and no more than QUEUE_BYTES wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol.messages import Plane

from moa_server.engine.stepper import CodedRows
from moa_server.memory.feed import Chunk, MemoryFeed
from moa_server.service.frames import memory_frame, merge_verdicts
from moa_server.service.patient_writer import PatientWriter

QUEUE_BYTES = 1 << 20  # of small frames: an answer of 250,000 tokens that is resumed by a client that has none of them


class FrameWriter:
    """Writes the frames of one stream.

    Args:
        write: hands one frame to gRPC.
        code: makes the bytes of a chunk of memory.
        hash_at: hash of the conversation's first tokens, as many as given; names the state that memory belongs to.
        may_code: whether there is time to encode some now; if not, `poke` is called later.
        write_seconds: how long a client may read almost nothing.
    """

    def __init__(
        self,
        write: Callable[[pb.ServerFrame], Awaitable[None]],
        code: Callable[[Chunk], asyncio.Future[CodedRows]],
        hash_at: Callable[[int], int],
        may_code: Callable[[], bool],
        write_seconds: float,
    ) -> None:
        self._writer = PatientWriter(write, write_seconds)
        self._code = code
        self._hash_at = hash_at
        self._may_code = may_code
        self._feed: MemoryFeed | None = None
        self._urgent: deque[pb.ServerFrame] = deque()
        self._urgent_bytes = 0
        self._beat: pb.ServerFrame | None = None
        self._newest: dict[Plane, CodedRows] = {}
        self._coding: tuple[Chunk, asyncio.Future[CodedRows]] | None = None
        self._poke = asyncio.Event()
        self._closing = False
        self._failure: MoaError | None = None

    # ------------------------------------------------------------ what there is to write

    def put(self, frame: pb.ServerFrame) -> None:
        """Queues a small frame, which overtakes memory; a verdict is merged into the one waiting before it."""
        self._urgent_bytes += frame.ByteSize()
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
        if not self._urgent or not merge_verdicts(self._urgent[-1], frame):
            self._urgent.append(frame)
        self._poke.set()

    def put_beat(self, stamp: int) -> None:
        """Answers a beat, in place of an answer that is not yet written."""
        self._beat = pb.ServerFrame(beat=pb.Beat(stamp=stamp, reply=True))
        self._poke.set()

    def follow(self, feed: MemoryFeed | None) -> None:
        """Writes the memory that `feed` gives from now on; None: no more memory."""
        self._feed = feed
        self._poke.set()

    def poke(self, newest: CodedRows | None = None) -> None:
        """The feed has more to give; `newest` are rows that are coded already."""
        if newest is not None:
            self._newest[newest.chunk.plane] = newest
        self._poke.set()

    def void(self, length: int) -> None:
        """Takes back unwritten memory rows from position `length` on, which are void."""
        self._newest.clear()
        if self._coding is not None and self._feed is not None:
            chunk, future = self._coding
            if chunk.start + chunk.count > length:
                future.cancel()
                self._feed.on_credit(chunk.nbytes)
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
                    await self._writer.write(frame)
                if self._failure is not None:
                    raise self._failure
                if self._closing:
                    return
        finally:
            if self._coding is not None:
                self._coding[1].cancel()

    def _next(self) -> pb.ServerFrame | None:
        if self._urgent:
            frame = self._urgent.popleft()
            self._urgent_bytes = self._urgent_bytes - frame.ByteSize() if self._urgent else 0
            if frame.WhichOneof("frame") == "verdict":
                self._attach_rows(frame.verdict)
            return frame
        if self._beat is not None:
            frame, self._beat = self._beat, None
            return frame
        if self._closing or self._failure is not None:
            return None
        return self._next_memory()

    def _attach_rows(self, verdict: pb.Verdict) -> None:
        """Puts rows into the verdict that are coded already and next to go."""
        feed = self._feed
        if feed is None or self._coding is not None:
            return
        waiting = next((rows for plane, rows in self._newest.items() if not feed.is_encoded(plane)), None)
        if waiting is None or verdict.base + len(verdict.tokens) < waiting.chunk.start + waiting.chunk.count:
            return  # of a later verdict in the queue
        chunk = feed.take(encodes=False)
        if chunk is None:
            return
        del self._newest[waiting.chunk.plane]
        if waiting.chunk == chunk:
            verdict.memory.CopyFrom(self._frame(waiting).memory)
        else:
            self._begin_coding(chunk)

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
        if self._coding is None:
            encodes = any(map(self._feed.is_encoded, self._newest)) or self._may_code()
            chunk = self._feed.take(encodes=encodes)
            if chunk is None:
                return None
            newest = self._newest.pop(chunk.plane, None)
            if newest is not None and newest.chunk == chunk:
                return self._frame(newest)
            future = self._begin_coding(chunk)
        else:
            future = self._coding[1]
        if not future.done():
            return None
        self._coding = None
        return self._frame(future.result())

    def _frame(self, rows: CodedRows) -> pb.ServerFrame:
        return memory_frame(rows, self._hash_at(rows.chunk.start + rows.chunk.count))
