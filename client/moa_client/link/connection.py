"""Keeps one Converse stream open: opens it, reads it, writes it, and reopens it when it is lost.

State: the stream, the tasks that read and write it, and whether to try again. Everything that happens is posted to one
inbox, in order, with the number of its stream. Invariants: one stream at a time; a stream that was left posts
nothing more, and what it posted before is known by its number; writing never blocks the caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import InternalError, MoaError, OverloadedError, UnavailableError

from moa_client.link.backoff import Backoff
from moa_client.link.channel import Link, Stream

READ_AHEAD = 256  # frames not yet handled; a prompt of 8,000 tokens comes in about 60
WRITE_AHEAD = 1024  # frames not yet accepted by gRPC: a transport that accepts so few is dead
GOODBYE_SECONDS = 1.0  # for the server to read a Bye; a silent one is left
RETRY_SECONDS = 1.5  # of one attempt after a loss: a lost SYN is sent again after 1 s
USEFUL_SECONDS = 2.0  # a stream that ends earlier, without a frame after Opened, was a failed attempt
RETRY_ROUND_TRIPS = 6  # an attempt takes two, and more where one packet is lost
log = logging.getLogger(__name__)
PASSING = (UnavailableError, OverloadedError, InternalError)  # errors that another attempt may fix


@dataclass(frozen=True, slots=True)
class Came:
    """A frame from the server; `stream` is the number of its stream."""

    stream: int
    frame: pb.ServerFrame


@dataclass(frozen=True, slots=True)
class Up:
    """A stream is open; `took_ms` from Open to Opened."""

    stream: int
    opened: pb.Opened
    took_ms: float


@dataclass(frozen=True, slots=True)
class Down:
    """The stream is lost, or an attempt to open one has failed.

    Args:
        stream: the number of the stream, or of the attempt to open it.
        retrying: whether the connection tries again on its own.
        broke: a useful stream has ended; the first attempt to open another one is still to come.
    """

    stream: int
    error: MoaError
    retrying: bool
    broke: bool


Post = Callable[[Came | Up | Down], None]


class Connection:
    """Keeps a stream to one server open.

    Args:
        link: makes streams.
        make_open: makes the Open frame when an attempt begins.
        post: takes what happens.
    """

    def __init__(
        self, link: Link, make_open: Callable[[], pb.Open], post: Post, backoff: Backoff | None = None
    ) -> None:
        self.link = link
        self._make_open = make_open
        self._post = post
        self._backoff = backoff or Backoff()
        self._task: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WRITE_AHEAD)
        self._room = asyncio.Semaphore(READ_AHEAD)
        self._was_useful = False  # the stream of this attempt
        self._lost_before = False  # then the next attempt makes a new connection
        self._leaving = False
        self.stream_number = 0  # of the newest attempt to open a stream, or of when the last one was left
        self._left = 0  # the stream of this number and all before were left
        self.rtt_ms = 0.0  # from the monitor, for the length of an attempt

    @property
    def is_up(self) -> bool:
        """Whether a stream is open."""
        return self._stream is not None

    @property
    def is_trying(self) -> bool:
        """Whether a stream is being opened, or will be."""
        return self._task is not None and not self._task.done() and self._stream is None

    def start(self) -> None:
        """Opens a stream, unless one is open or being opened."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep())

    def send(self, **frame: Any) -> None:
        """Queues a frame for the open stream; without one it is dropped, since Open will say what matters."""
        if self._stream is None:
            return
        try:
            self._outgoing.put_nowait(frame)
        except asyncio.QueueFull:
            self._stream.cancel()  # its reader posts the end

    def accept(self, happened: Came | Up | Down) -> bool:
        """Takes one thing out of the inbox: makes room for another frame; False if it is of a stream that was left.

        A stream that broke is left when the next one is opened: its Open has said what was known by then.
        """
        if isinstance(happened, Down):
            return happened.stream > self._left
        if happened.stream != self.stream_number:
            return False
        if isinstance(happened, Came):
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
        self.start()

    async def leave(self) -> None:
        """Says goodbye, which frees the session at the server, and leaves."""
        if self._task is not None and self._stream is not None:
            self._leaving = True
            self._room.release()  # what arrives is read and discarded, so that the server can end the stream
            self.send(bye=pb.Bye())
            await asyncio.wait((self._task,), timeout=GOODBYE_SECONDS)
        await self.drop()

    # ------------------------------------------------------------ inside

    async def _keep(self) -> None:
        self._leaving = False
        while True:
            self._was_useful = False
            try:
                await self._run_stream()
            except MoaError as error:
                if self._leaving:
                    return
                retrying = isinstance(error, PASSING)
                self._log_loss(error)
                self._post(Down(self.stream_number, error, retrying, broke=self._was_useful))
                if not retrying:
                    return
                if isinstance(error, OverloadedError):
                    self._backoff.not_before(error.retry_after_ms / 1e3)
            self._lost_before = True
            await asyncio.sleep(self._backoff.next_seconds())

    def _log_loss(self, error: MoaError) -> None:
        level = logging.WARNING if self._was_useful else logging.INFO
        what = "lost" if self._was_useful else "not opened"
        log.log(level, "stream %d to %s %s: %s", self.stream_number, self.link.address, what, error.message)

    async def _run_stream(self) -> None:
        """Opens a stream and reads it to its end.

        Raises:
            MoaError: why it ended, or could not be opened.
        """
        seconds = None
        if self._lost_before:
            await self.link.renew()
            seconds = max(RETRY_SECONDS, RETRY_ROUND_TRIPS * self.rtt_ms / 1e3)
        began = time.monotonic()
        self.stream_number += 1
        number = self.stream_number
        stream, opened = await self.link.open(self._make_open(), seconds)
        opened_at = time.monotonic()
        self._stream = stream
        self._outgoing = asyncio.Queue(WRITE_AHEAD)
        self._room = asyncio.Semaphore(READ_AHEAD)
        took_ms = 1e3 * (opened_at - began)
        level = logging.WARNING if self._lost_before else logging.INFO
        log.log(level, "stream %d to %s opened in %.0f ms", number, self.link.address, took_ms)
        self._post(Up(number, opened, took_ms))
        writer = asyncio.create_task(self._write(stream, self._outgoing))
        try:
            while True:
                frame = await stream.receive()
                self._was_useful = True
                if not self._leaving:
                    await self._room.acquire()
                    self._post(Came(number, frame))
        finally:
            self._was_useful |= time.monotonic() - opened_at > USEFUL_SECONDS
            if self._was_useful:
                self._backoff.reset()
            self._stream = None
            writer.cancel()
            stream.cancel()

    @staticmethod
    async def _write(stream: Stream, outgoing: asyncio.Queue[dict[str, Any]]) -> None:
        while True:
            frame = await outgoing.get()
            try:
                if "bye" in frame:
                    await stream.say_goodbye()
                    return
                await stream.send(**frame)
            except MoaError:
                stream.cancel()  # its reader posts the end, with the reason
                return
