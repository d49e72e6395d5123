"""One Converse stream: frames out, frames in as messages, and the one error of the catalogue that ended it.

State: gRPC's call, and bytes counted each way. Every wait on the peer has a deadline, the caller's or its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.handshake_checks import clean_texts


@contextmanager
def heeded_cancellation() -> Iterator[None]:
    """In this block, a task that waits on a call ends when it is cancelled, with CancelledError.

    gRPC loses a cancellation that comes just as the status of a call arrives: it waits for the call's beginning in a
    task of its own, which takes the cancellation to be meant for itself, and then raises the status. A loop that tries
    again after a failed call would never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from None


EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
FRAME_OVERHEAD_BYTES = 5  # gRPC's header of a message
SEND_SECONDS = 10.0  # for gRPC to accept one small frame; it buffers many, so only a dead transport takes longer
WRITE_FAILED = "Internal error from Core"  # gRPC's details of a call one of whose writes failed
STATUS_SECONDS = 1.0  # after such a write, for the status that the call ended with

Way = Literal["up", "down"]
Frame = pb.ClientFrame | pb.ServerFrame
Observer = Callable[[Way, Frame], None]


@dataclass(slots=True)
class StreamTraffic:
    """Bytes of messages, including their gRPC headers but not HTTP/2, TCP and IP.

    `observe`: called with each message that is sent or has arrived.
    """

    up_bytes: int = 0
    down_bytes: int = 0
    observe: Observer | None = None

    def count(self, way: Way, message: Frame) -> None:
        size = message.ByteSize() + FRAME_OVERHEAD_BYTES
        if way == "up":
            self.up_bytes += size
        else:
            self.down_bytes += size
        if self.observe is not None:
            self.observe(way, message)


ConverseCall = grpc.aio.StreamStreamCall[pb.ClientFrame, pb.ServerFrame]


class Stream:
    """An open Converse stream: a call of gRPC that has just begun, and its channel, which it holds.

    `explain`: says why the call has failed.
    """

    def __init__(
        self,
        call: ConverseCall,
        traffic: StreamTraffic,
        explain: Callable[[grpc.RpcError], Awaitable[MoaError]],
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self._call = call
        self._traffic = traffic
        self._channel = channel
        self._explain = explain
        self._status: grpc.aio.AioRpcError | None = None
        self._ended = asyncio.Event()
        call.add_done_callback(self._on_status)

    async def send(self, frame: pb.ClientFrame) -> None:
        self._traffic.count("up", frame)
        try:
            with heeded_cancellation():
                async with asyncio.timeout(SEND_SECONDS):
                    await self._call.write(frame)
        except TimeoutError:
            raise _accepts_nothing() from None
        except (grpc.RpcError, asyncio.InvalidStateError):
            raise await self._reason() from None

    async def receive(self) -> pb.ServerFrame:
        """The next frame; the caller sets how long to wait for it."""
        try:
            with heeded_cancellation():
                message = await self._call.read()
        except grpc.RpcError:
            raise await self._reason() from None
        except asyncio.CancelledError:  # also gRPC's word for a call that was cancelled here, by who writes
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise _accepts_nothing() from None
        if message is EOF:
            raise await self._reason()
        if not isinstance(message, pb.ServerFrame):
            raise ProtocolError("a frame", type(message).__name__)
        self._traffic.count("down", message)
        if message.WhichOneof("frame") == "go_away":  # the only frame with text
            clean_texts(message)
        return message

    async def say_goodbye(self) -> None:
        """Tells the server to free the session; it then ends the stream. A server that is gone needs no goodbye."""
        try:
            with heeded_cancellation():
                async with asyncio.timeout(SEND_SECONDS):
                    await self._call.write(pb.ClientFrame(bye=pb.Bye()))
                    await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            self.cancel()

    def cancel(self) -> None:
        """Ends the stream at once; every stream is cancelled in the end, also one that the server has ended."""
        self._call.cancel()

    def _on_status(self, call: ConverseCall) -> None:
        """Keeps the status of the call.

        A write that fails because the call has ended has gRPC replace that status by one of its own, which says only
        that a write failed (grpc/grpc#36066).
        """
        status = _status_of(call)
        if status.details() != WRITE_FAILED:
            self._ended.set()
        elif self._ended.is_set():
            return
        self._status = status

    async def _reason(self) -> MoaError:
        """Why the call has ended, by its status."""
        await self._call.code()
        with suppress(TimeoutError):
            async with asyncio.timeout(STATUS_SECONDS):
                await self._ended.wait()
        status = self._status or _status_of(self._call)
        if status.code() is grpc.StatusCode.OK:
            return UnavailableError("The server ended the conversation.", hint="Ask again to open a new one.")
        return await self._explain(status)


def _status_of(call: ConverseCall) -> grpc.aio.AioRpcError:
    """The status of a call that has one, as it is now: nothing of this waits."""

    async def read() -> grpc.aio.AioRpcError:
        metadata = await call.trailing_metadata()
        return grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), metadata, await call.details(), None)

    try:
        read().send(None)
    except StopIteration as done:
        status: grpc.aio.AioRpcError = done.value
        return status
    raise AssertionError("the call has no status")


def _accepts_nothing() -> UnavailableError:
    return UnavailableError("The server accepts no data.", hint="Ask again, or try another server.")
