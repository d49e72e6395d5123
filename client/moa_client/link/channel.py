"""The link to a server: one gRPC channel with one Converse stream at a time.

State: channel and stream, and bytes counted each way. Every wait on the peer has a deadline; every failure becomes one
error of the catalogue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_shared.errors import MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.handshake_checks import CODE_KEY, PROTOCOL_VERSION, check_protocol, clean_texts, error_from_rpc

# Keepalive is the backstop for a dead peer; ping_timeout_ms is what bounds it (its own default is 60 s).
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 6_000),
    ("grpc.http2.ping_timeout_ms", 6_000),
    ("grpc.http2.bdp_probe", 0),
    # Else a new channel takes over the connection attempt that the one before is still waiting for.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also bounds a connection attempt: 500 failed at a round trip of 300 ms
    ("grpc.max_reconnect_backoff_ms", 3_000),
]
WINDOW_BYTES = 64 << 10  # of a conversation: more would let memory queue up in the network ahead of verdicts
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
FRAME_OVERHEAD_BYTES = 5  # gRPC's header of a message
NOT_GRPC = ("HTTP/2", "SETTINGS", "Socket closed")  # gRPC's words where something else listens
SEND_SECONDS = 10.0  # for gRPC to accept one small frame; it buffers many, so only a dead transport takes longer


@dataclass(slots=True)
class Traffic:
    """Bytes of messages, including their gRPC headers but not HTTP/2, TCP and IP."""

    up_bytes: int = 0
    down_bytes: int = 0


class Stream:
    """An open Converse stream."""

    def __init__(self, call: Any, traffic: Traffic) -> None:
        self._call = call
        self._traffic = traffic

    async def send(self, **frame: Any) -> None:
        """Sends one frame, such as `draft=pb.Draft(...)`.

        Raises:
            MoaError: why the stream ended.
        """
        message = pb.ClientFrame(**frame)
        self._traffic.up_bytes += message.ByteSize() + FRAME_OVERHEAD_BYTES
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._call.write(message)
        except TimeoutError:
            raise UnavailableError("The server accepts no data.", hint="Ask again, or try another server.") from None
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise await self._reason(error) from None

    async def receive(self) -> pb.ServerFrame:
        """The next frame; the caller sets how long to wait for it.

        Raises:
            MoaError: why the stream ended.
        """
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        if message is EOF:
            raise await self._reason(None)
        self._traffic.down_bytes += message.ByteSize() + FRAME_OVERHEAD_BYTES
        if not isinstance(message, pb.ServerFrame):
            raise ProtocolError("a frame", type(message).__name__)
        if message.WhichOneof("frame") == "go_away":  # the only frame with text
            clean_texts(message)
        return message

    async def say_goodbye(self) -> None:
        """Tells the server to free the session; it then ends the stream. A server that is gone needs no goodbye."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._call.write(pb.ClientFrame(bye=pb.Bye()))
                await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            self.cancel()

    def cancel(self) -> None:
        """Ends the stream at once."""
        self._call.cancel()

    async def _reason(self, error: BaseException | None) -> MoaError:
        """The status with which the call ended."""
        if isinstance(error, grpc.RpcError) and isinstance(error, grpc.aio.AioRpcError):
            return error_from_rpc(error)
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            return UnavailableError("The server ended the conversation.", hint="Ask again to open a new one.")
        metadata = await self._call.trailing_metadata()
        return error_from_rpc(
            grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, await self._call.details(), None)
        )


class Link:
    """A channel to one server.

    Args:
        address: HOST:PORT.
        connect_seconds: how long to wait for it.
        silence_seconds: the longest wait for a frame.
    """

    def __init__(self, address: str, connect_seconds: float, silence_seconds: float) -> None:
        self.address = address
        self._window_bytes = WINDOW_BYTES
        self.traffic = Traffic()
        self._connect_seconds = connect_seconds
        self.silence_seconds = silence_seconds
        self._connect_channel()

    def _connect_channel(self) -> None:
        options = [*CHANNEL_OPTIONS, ("grpc.http2.lookahead_bytes", self._window_bytes)]
        self._channel = grpc.aio.insecure_channel(self.address, options=options)
        self._stub: Any = moa_pb2_grpc.MoaStub(self._channel)

    async def renew(self) -> None:
        """Replaces the connection: packets lost in an outage delay the old one for seconds after it."""
        before = self._channel
        self._connect_channel()
        await before.close(None)

    def widened(self, window_bytes: int) -> Link:
        """Another connection to the same server, for a download; its traffic is counted here.

        Args:
            window_bytes: bytes a call may have in flight to us.
        """
        other = copy(self)
        other._window_bytes = window_bytes
        other._connect_channel()
        return other

    async def describe(self) -> pb.DescribeResponse:
        """What the server serves.

        Raises:
            UnavailableError: nothing at the address speaks moa's protocol.
            MismatchError: another version of the protocol.
        """
        try:
            response: pb.DescribeResponse = await self._stub.Describe(
                pb.DescribeRequest(), timeout=self._connect_seconds, wait_for_ready=False
            )
        except grpc.RpcError as error:
            raise self._unreachable(error) from None
        clean_texts(response)
        check_protocol(response.protocol_version, PROTOCOL_VERSION)
        return response

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        """One call of FetchDrafter, message by message.

        Raises:
            MoaError: the server refuses, or is silent.
        """
        call = self._stub.FetchDrafter(request)
        try:
            while True:
                async with asyncio.timeout(self.silence_seconds):
                    message = await call.read()
                if message is EOF:
                    return
                self.traffic.down_bytes += message.ByteSize() + FRAME_OVERHEAD_BYTES
                yield message
        except TimeoutError:
            raise UnavailableError(
                f"The server at {self.address} has sent nothing for {self.silence_seconds:g} s."
            ) from None
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()

    async def open(self, message: pb.Open, seconds: float | None = None) -> tuple[Stream, pb.Opened]:
        """Opens a conversation.

        Args:
            seconds: how long to wait; None: as for connecting.

        Raises:
            MoaError: the server refuses, or does not answer.
        """
        call = self._stub.Converse()
        stream = Stream(call, self.traffic)
        try:
            async with asyncio.timeout(seconds or self._connect_seconds):
                await stream.send(open=message)
                frame = await stream.receive()
        except asyncio.CancelledError:
            call.cancel()
            raise
        except TimeoutError:
            call.cancel()
            raise UnavailableError(f"The server at {self.address} did not open the conversation in time.") from None
        if frame.WhichOneof("frame") != "opened":
            call.cancel()
            raise ProtocolError("Opened as the first frame", str(frame.WhichOneof("frame")))
        return stream, frame.opened

    def _unreachable(self, error: grpc.RpcError) -> MoaError:
        """Why there is no conversation with this address, in one sentence."""
        reason = error_from_rpc(error)
        trailing: Any = error.trailing_metadata() or ()
        if CODE_KEY in dict(trailing):
            return reason  # a moa server's words
        status, details = error.code(), error.details() or ""
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            why = f"nothing answered within {self._connect_seconds:g} s"
        elif "refused" in details:
            why = "the connection was refused"
        elif "resol" in details:
            why = "the name is not known"
        elif status is grpc.StatusCode.UNAVAILABLE and any(sign in details for sign in NOT_GRPC):
            why = "what listens there does not speak gRPC"
        elif status is grpc.StatusCode.UNIMPLEMENTED:
            why = "what listens there is another gRPC service"
        else:
            why = f"the call failed ({details or status.name})"
        return UnavailableError(f"There is no moa server at {self.address}: {why}.")

    async def close(self) -> None:
        await self._channel.close(None)


@asynccontextmanager
async def connect(address: str, connect_seconds: float, silence_seconds: float) -> AsyncIterator[Link]:
    """A link that is closed at the end."""
    link = Link(address, connect_seconds, silence_seconds)
    try:
        yield link
    finally:
        await link.close()
