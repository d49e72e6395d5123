"""What a stream has to write: verdicts and other small frames first, memory with or after them as the credit allows.

State: queued verdicts and frames, and the memory that is followed. Invariants: memory never goes before a queued
verdict; of beats only the newest is kept, verdicts that continue each other are one, one that may
linger waits for others, and no more than QUEUE_BYTES wait.
A verdict becomes a frame when it is written, so that it can leave out what the frame before it implies.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol.messages import Memory, Plane, Verdict
from moa_shared.protocol.protobuf_messages import VerdictWriter, memory_to_proto

from moa_server.engine.observer import FrameBytes, Observer
from moa_server.engine.stepper import CodedRows
from moa_server.service.stream.frames import MemoryQueue, merge_verdicts
from moa_server.session.memory_feed import Chunk, MemoryFeed

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
            raise UnavailableError(
                f"The client has read almost nothing for {self._patience_seconds:g} s.",
                hint="Call again to resume.",
            ) from None
        nbytes = message.ByteSize()
        self._owed_seconds = max(0.0, self._owed_seconds + self._clock() - began - nbytes / LEAST_RATE)
        return nbytes


QUEUE_BYTES = 1 << 20  # of small frames: an answer of 250,000 tokens that is resumed by a client that has none of them

LINGER_MS = 50.0  # a frame costs server and device about as much Python as a step, and no eye sees so short a wait

VERDICT_BYTES, TOKEN_BYTES = 40, 3  # of a verdict without tokens, and of each of its tokens


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
        self._memory: MemoryQueue | None = None
        self._rows_in_frame: list[Memory] = []  # that the next frame written holds
        self._verdicts = VerdictWriter()
        self._urgent: deque[Verdict | pb.ServerFrame] = deque()
        self._urgent_bytes = 0
        self._beat: pb.ServerFrame | None = None
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
            self.fail(
                UnavailableError(
                    f"The client has left {QUEUE_BYTES} bytes unread.",
                    hint="Keep reading, or open a new stream to resume.",
                )
            )
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

    def follow(
        self,
        feed: MemoryFeed,
        code: Callable[[Chunk], asyncio.Future[CodedRows]],
        may_code: Callable[[], bool],
        hash_at: Callable[[int], int],
    ) -> None:
        """As of `MemoryQueue`."""
        self._memory = MemoryQueue(feed, code, may_code, hash_at, self._poke)
        self._poke.set()

    def unfollow(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def poke(self) -> None:
        self._poke.set()

    def put_rows(self, newest: CodedRows, *, with_verdict: bool) -> None:
        """Queues rows that are coded already, as `MemoryQueue.put` does."""
        if self._memory is not None:
            self._memory.put(newest, with_verdict=with_verdict)

    def void(self, length: int) -> None:
        """Takes back unwritten memory rows from position `length` on, which are void."""
        if self._memory is not None:
            self._memory.void(length)

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
            if self._memory is not None:  # the coded rows that are not of a later verdict in the queue go with it
                self._rows_in_frame += self._memory.take_with_verdict(item.base + len(item.tokens))
            return pb.ServerFrame(verdict=self._verdicts.write_verdict(item, self._rows_in_frame))
        if self._beat is not None:
            frame, self._beat = self._beat, None
            return frame
        if self._closing or self._failure is not None:
            return None
        memory = self._memory.take() if self._memory is not None else None
        if memory is None:
            return None
        self._rows_in_frame.append(memory)
        return pb.ServerFrame(memory=memory_to_proto(memory))

    def _count(self, nbytes: int) -> None:
        rows, self._rows_in_frame = self._rows_in_frame, []
        for each in rows:
            self._observer.on_sent(
                FrameBytes.MEMORY if each.plane is Plane.MEMORY else FrameBytes.STATE, len(each.payload)
            )
            nbytes -= len(each.payload)
        self._observer.on_sent(FrameBytes.VERDICTS, nbytes)


def _size(item: Verdict | pb.ServerFrame) -> int:
    """Bytes that it may take."""
    return VERDICT_BYTES + TOKEN_BYTES * len(item.tokens) if isinstance(item, Verdict) else item.ByteSize()
