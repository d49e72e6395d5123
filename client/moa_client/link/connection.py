"""Keeps one Converse stream open: opens it, reads it, writes it, and reopens it when it is lost.

State: the stream, the tasks that read and write it, and whether to try again. Everything that happens is posted to one
inbox, in order, with the number of its stream. Invariants: one stream at a time; a stream that was left posts
nothing more, and what it posted before is known by its number; writing never blocks the caller; no task ends without
a word, not even by a defect. The jitter of waits spreads out the clients of a restarted server.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import DeniedError, InternalError, MoaError, OverloadedError, UnavailableError
from moa_shared.protocol.handshake_checks import IDLE
from moa_shared.protocol.messages import Ack, Ask, Draft
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.protobuf_messages import DraftFrames, ask_to_proto

from moa_client.link.dialer import Dialer, MakeOpen
from moa_client.link.fleet import Fleet
from moa_client.link.stream import Stream, StreamTraffic

AT_ONCE_SECONDS = 0.05  # at most, before the first attempt: the cause of a broken stream is often over
FIRST_SECONDS = 0.2
MOST_SECONDS = 3.0
SPREAD = 0.5  # of the wait that a server asked for


class Backoff:
    """Almost no wait, then doubling waits, each drawn from all of its length ("full jitter").

    Of 500 clients that lose a server at once, at most 70 come in any tenth of a second after the first one; 146 would
    if waits were drawn from their upper halves.
    """

    def __init__(self, random_source: random.Random | None = None) -> None:
        self._random = random_source or random.Random()
        self._attempts = 0
        self._least_seconds = 0.0  # of the next wait

    def not_before(self, seconds: float) -> None:
        """Delays the next attempt as the server asks; clients given the same delay are spread out."""
        self._least_seconds = seconds * self._random.uniform(1.0, 1.0 + SPREAD)

    def next_seconds(self) -> float:
        least, self._least_seconds = self._least_seconds, 0.0
        attempts, self._attempts = self._attempts, min(self._attempts + 1, 16)
        if attempts == 0:
            return max(least, self._random.uniform(0.0, AT_ONCE_SECONDS))
        most = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** (attempts - 1))
        return max(least, self._random.uniform(AT_ONCE_SECONDS, most))

    def reset(self) -> None:
        self._attempts = 0


READ_AHEAD = 256  # frames not yet handled; a prompt of 8,000 tokens comes in about 60
WRITE_AHEAD = 1024  # frames not yet accepted by gRPC: a transport that accepts so few is dead
GOODBYE_SECONDS = 1.0  # for the server to read a Bye; a silent one is left
RETRY_SECONDS = 1.5  # of one attempt after a loss: a lost SYN is sent again after 1 s
USEFUL_SECONDS = 2.0  # a stream that ends earlier, without a frame after Opened, was a failed attempt
PASSING = (UnavailableError, OverloadedError, InternalError)  # errors that another attempt may fix
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame from the server; `stream` is the number of its stream."""

    stream: int
    frame: pb.ServerFrame


@dataclass(frozen=True, slots=True)
class StreamOpened:
    stream: int
    opened: pb.Opened
    took_ms: float  # from Open to Opened
    address: str = ""
    label: str = ""  # the server's address for people
    reason: str = ""  # why it is another server than before, if it is


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream of this number is lost, or the attempt to open it has failed."""

    stream: int
    error: MoaError
    retrying: bool  # the connection tries again on its own
    broke: bool  # a useful stream has ended; the first attempt to open another one is still to come
    wait_seconds: float = 0.0  # until the next attempt, as the server asked for; 0: it did not
    rests: bool = False  # nothing was asked on the stream, and the server has ended it; only `start` opens another


class ServerConnection:
    """Keeps a stream open, to one server or to the best of several.

    `make_open`: makes the Open frame for the server at an address when an attempt begins. `text`: of the conversation,
    as it is at any time.
    """

    def __init__(
        self,
        fleet: Fleet,
        make_open: MakeOpen,
        post: Callable[[FrameReceived | StreamOpened | StreamLost], None],
        text: PrefixHashes,
        backoff: Backoff | None = None,
    ) -> None:
        self.dialer = Dialer(fleet, text)
        self.traffic = StreamTraffic()  # of this conversation's streams
        self._make_open = make_open
        self._post = post
        self._backoff = backoff or Backoff()
        self._task: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._drafts = DraftFrames()  # of this stream
        self._outgoing: asyncio.Queue[pb.ClientFrame] = asyncio.Queue(WRITE_AHEAD)
        self._room = asyncio.Semaphore(READ_AHEAD)
        self._was_useful = False  # the stream of this attempt
        self._lost_before = False  # then the next attempt is a shorter one
        self._leaving = False
        self._rests = False  # the server has ended this stream, on which nothing was asked
        self.stream_number = 0  # of the newest attempt to open a stream, or of when the last one was left
        self._left = 0  # the stream of this number and all before were left

    @property
    def is_up(self) -> bool:
        return self._stream is not None

    @property
    def is_trying(self) -> bool:
        """Whether a stream is being opened, or will be."""
        return self._task is not None and not self._task.done() and self._stream is None

    def start(self) -> None:
        """Opens a stream, unless one is open or being opened."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep())

    def queue_frame(self, frame: pb.ClientFrame) -> None:
        """Queues a frame for the open stream; without one it is dropped, since Open will say what matters."""
        if self._stream is None:
            return
        try:
            self._outgoing.put_nowait(frame)
        except asyncio.QueueFull:
            self._stream.cancel()  # its reader posts the end

    def send_ask(self, ask: Ask) -> None:
        self._drafts = DraftFrames()
        self.queue_frame(pb.ClientFrame(ask=ask_to_proto(ask)))

    def send_draft(self, message: Draft | Ack) -> None:
        """Sends a draft, or what takes its place while there is none."""
        if self._stream is None:
            return
        if isinstance(message, Draft):
            self.queue_frame(pb.ClientFrame(draft=self._drafts.write_draft(message)))
        else:
            self.queue_frame(pb.ClientFrame(ack=pb.Ack(committed=message.committed)))

    def accept(self, happened: FrameReceived | StreamOpened | StreamLost) -> bool:
        """Takes one thing out of the inbox: makes room for another frame; False if it is of a stream that was left.

        A stream that broke is left when the next one is opened: its Open has said what was known by then.
        """
        if isinstance(happened, StreamLost):
            return happened.stream > self._left
        if happened.stream != self.stream_number:
            return False
        if isinstance(happened, FrameReceived):
            self._room.release()
        return True

    async def drop(self) -> None:
        """Leaves the stream at once and does not retry."""
        self._left = self.stream_number
        self.stream_number += 1
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def lose(self) -> None:
        """Gives the stream up as lost: leaves it and its connection, and opens another one."""
        await self.drop()
        self._lost_before = True
        self.dialer.on_lost(None, was_useful=self._was_useful)
        self.start()

    async def leave(self) -> None:
        """Says goodbye, which frees the session at the server, and leaves."""
        if self._task is not None and self._stream is not None:
            self._leaving = True
            self._room.release()  # what arrives is read and discarded, so that the server can end the stream
            self.queue_frame(pb.ClientFrame(bye=pb.Bye()))
            await asyncio.wait((self._task,), timeout=GOODBYE_SECONDS)
        await self.drop()

    async def _keep(self) -> None:
        self._leaving = False
        try:
            if self._rests and not self._was_useful:  # a server that ends each stream so is not asked without end
                await asyncio.sleep(self._backoff.next_seconds())
            while (seconds := await self._run_stream()) is not None:
                self._lost_before = True
                await asyncio.sleep(seconds)
        except Exception as error:
            log.exception("the connection to %s has failed", self.dialer.server.label)
            told = InternalError(f"The connection has failed ({type(error).__name__}).")
            told.__cause__ = error
            self._post(StreamLost(self.stream_number, told, retrying=False, broke=self._was_useful))

    def _on_end(self, error: MoaError) -> float | None:
        """Posts why a stream has ended, or was not opened; seconds until the next attempt, None: there is none."""
        if self._leaving:
            return None
        if self._rests:
            self._post(StreamLost(self.stream_number, error, retrying=False, broke=False, rests=True))
            return None
        level, what = (logging.WARNING, "lost") if self._was_useful else (logging.INFO, "not opened")
        log.log(level, "stream %d to %s %s: %s", self.stream_number, self.dialer.server.label, what, error.message)
        has_other = self.dialer.on_lost(error, was_useful=self._was_useful)
        is_told = isinstance(error, OverloadedError) and not has_other  # to wait
        if isinstance(error, OverloadedError) and is_told:
            self._backoff.not_before(error.retry_after_ms / 1e3)
        retrying = isinstance(error, PASSING) or (isinstance(error, DeniedError) and has_other)
        seconds = self._backoff.next_seconds() if retrying else None
        self._post(
            StreamLost(self.stream_number, error, retrying, self._was_useful, seconds or 0.0 if is_told else 0.0)
        )
        return seconds

    async def _run_stream(self) -> float | None:
        """Keeps one stream until it ends; seconds until the next attempt, None: there is none."""
        self._was_useful = self._rests = False
        is_short = self._lost_before or self.dialer.has_other  # what does not answer is soon tried again, or elsewhere
        self.stream_number += 1
        seconds = RETRY_SECONDS if is_short else None
        try:
            stream, opened, took_ms = await self.dialer.dial(self._make_open, seconds, self.traffic)
        except MoaError as error:
            return self._on_end(error)
        server, opened_at = self.dialer.server, time.monotonic()
        self._stream, self._drafts = stream, DraftFrames()
        self._outgoing, self._room = asyncio.Queue(WRITE_AHEAD), asyncio.Semaphore(READ_AHEAD)
        level = logging.WARNING if self._lost_before else logging.INFO
        log.log(level, "stream %d to %s opened in %.0f ms", self.stream_number, server.label, took_ms)
        reason = self.dialer.reason
        self._post(StreamOpened(self.stream_number, opened, took_ms, server.address, server.label, reason))
        writer = asyncio.create_task(self._write_frames(stream, self._outgoing))
        try:
            await self._read_frames(stream, self.stream_number)
        except MoaError as error:
            if writer.done():
                writer.result()  # its defect is why the stream ended
            ended = error
        finally:
            self._was_useful |= time.monotonic() - opened_at > USEFUL_SECONDS
            if self._was_useful:
                self._backoff.reset()
            self._stream = None
            writer.cancel()
            stream.cancel()
        return self._on_end(ended)

    async def _read_frames(self, stream: Stream, number: int) -> NoReturn:
        while True:
            frame = await stream.receive()
            is_last = frame.HasField("go_away")
            self._rests = is_last and frame.go_away.reason == IDLE
            self._was_useful |= not is_last
            if is_last:
                if not self._rests:
                    self.dialer.on_go_away(frame.go_away.servers)
                reason = frame.go_away.reason or "it is shutting down"
                raise UnavailableError(f"The server is going away: {reason}.", hint="Ask again, or try another server.")
            if not self._leaving:
                await self._room.acquire()
                self._post(FrameReceived(number, frame))

    @staticmethod
    async def _write_frames(stream: Stream, outgoing: asyncio.Queue[pb.ClientFrame]) -> None:
        try:
            while not (frame := await outgoing.get()).HasField("bye"):
                await stream.send(frame)
            await stream.say_goodbye()
        except BaseException as error:
            stream.cancel()  # its reader posts the end, with the reason
            if not isinstance(error, MoaError):
                raise
