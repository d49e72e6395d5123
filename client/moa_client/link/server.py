"""One server: its address and protection, the channel to it, and what is known about it.

State: its newest description, the time of a round trip, the newest failure, and until when others are preferred. Every
wait on the peer has a deadline; every failure becomes one error of the catalogue.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from copy import copy
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, TypeVar

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError, ProtocolError, UnavailableError
from moa_shared.programs.addresses import host_of, is_loopback, successors_among
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, check_identity, check_protocol, clean_texts
from moa_shared.tracing import TRACEPARENT

from moa_client.link.channel import ServerCalls, ServerChannel
from moa_client.link.rank import ServerRank
from moa_client.link.security import PLAIN, Security
from moa_client.link.stream import FRAME_OVERHEAD_BYTES, Stream, StreamTraffic, heeded_cancellation
from moa_client.link.unreachable import call_error, why_unreachable

DESCRIBE_ROUND_TRIPS = 2  # of the first call; one is for the connection, and TLS takes another
EMBED_SECONDS = 120.0  # a whole context, on a server with others; a silent one is noticed earlier
Response = TypeVar("Response", pb.FetchDrafterResponse, pb.GenerateResponse)
SESSION = "moa-session"  # of a stream's metadata: the conversation's name


class Server:
    """A server, as all conversations know it.

    Args:
        address: HOST:PORT.
        connect_seconds: how long to wait for a connection.
        silence_seconds: the longest wait for a frame.
    """

    def __init__(
        self, address: str, connect_seconds: float, silence_seconds: float, security: Security = PLAIN, name: str = ""
    ) -> None:
        security.check(address)
        self.address = address
        self.name = name
        self.label = f"{name} ({address})" if name else address  # for people
        self.connect_seconds = connect_seconds
        self.silence_seconds = silence_seconds
        self.security = security
        self.traffic = StreamTraffic()  # of downloads, and of streams that are not counted by themselves
        self.served: pb.DescribeResponse | None = None  # the newest description
        self.named: tuple[str, ...] = ()  # others of its fleet, HOST:PORT, as it has said last
        self.error: MoaError | None = None  # why the newest attempt to ask it has failed
        self.described_at = time.monotonic()  # or made
        self.rtt_ms: float | None = None  # a round trip, measured
        self.first_rtt_ms: float | None = None  # roughly: by the first description, which opened the connection
        self.measured_at = -math.inf  # seconds, monotonic
        self._avoid_until = 0.0
        self._failed_channel: int | None = None
        self._channel = ServerChannel(address, security, self.label)

    def peer(self, address: str) -> Server:
        """Another server, protected as this one is.

        One that is named by its number must have a certificate for the name that this one has: pods have none for
        their numbers, and a server with one for the name is as good as this one.
        """
        own_name = self.security.server_name or host_of(self.address)
        shares_name = _is_number(host_of(address)) and not _is_number(own_name) and not is_loopback(own_name)
        security = replace(self.security, server_name=own_name if shares_name else "")
        return Server(address, self.connect_seconds, self.silence_seconds, security)

    @property
    def channel_number(self) -> int:
        """Of the channel that the next call uses; `renew` gives another one."""
        return self._channel.current().number

    def renew(self, lost: int) -> None:
        """Replaces a lost connection, unless another conversation has."""
        self._channel.renew(lost)

    def refresh(self) -> None:
        self._channel.refresh()

    def widened(self, window_bytes: int) -> Server:
        """The same server over another connection, for a download; its traffic is counted here.

        `window_bytes`: bytes a call may have in flight to us.
        """
        other = copy(self)
        other._channel = self._channel.widened(window_bytes)
        return other

    async def close(self) -> None:
        await self._channel.close()

    async def describe(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        """What the server serves.

        Args:
            seconds: how long to wait; None: as for connecting.
            prefix_hashes: of a text after each 64th token: how much of it need the server not read?
        """
        began, seconds = time.monotonic(), seconds or self.connect_seconds
        request = pb.DescribeRequest(prefix_hashes=prefix_hashes)
        try:
            with heeded_cancellation(), self._channel.current().used() as calls:
                served = await calls.Describe(
                    request, timeout=seconds, wait_for_ready=False, metadata=self.security.metadata
                )
        except grpc.RpcError as error:
            raise await why_unreachable(
                error, self.address, self.label, self.security, seconds, has_answered=self._has_answered
            ) from None
        self.described_at = time.monotonic()
        if self.first_rtt_ms is None:
            self.first_rtt_ms = 1e3 * (self.described_at - began) / (DESCRIBE_ROUND_TRIPS + self.security.tls)
        clean_texts(served)
        check_protocol(served.protocol_version, PROTOCOL_VERSION)
        self.served, self.named = served, successors_among(served.servers)
        return served

    async def ask(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        """As `describe`, and remembers a failure: the next attempt is over another connection."""
        if self._failed_channel is not None:
            self.renew(self._failed_channel)
        self._failed_channel = None
        channel = self.channel_number
        try:
            served = await self.describe(seconds, prefix_hashes=prefix_hashes)
        except MoaError as error:
            self.error, self._failed_channel = error, channel
            raise
        self.error = None
        return served

    async def measure(self, seconds: float | None = None) -> None:
        """Asks what it serves, and how long a round trip takes: the first question also opens the connection."""
        await self.ask(seconds)
        began = time.monotonic()
        await self.ask(seconds)
        self.measured_at = time.monotonic()
        self.rtt_ms = 1e3 * (self.measured_at - began)

    def avoid(self, seconds: float) -> None:
        """For so long, it is the last resort."""
        self._avoid_until = time.monotonic() + seconds

    def rank(self, needs: pb.Identity, unread_tokens: int = 0, *, needs_form: bool = False) -> ServerRank:
        """For a conversation that needs this target, tokenizer and drafter.

        `unread_tokens`: of its text, that this server would have to read; `needs_form`: its answer must have a form.
        """
        served = self.served
        if served is None:
            return ServerRank(avoid_until=self._avoid_until)
        drafter = needs.drafter_fingerprint
        return ServerRank(
            self.rtt_ms,
            served.step_ms,
            served.load,
            has_model=serves(served, needs),
            has_execution=computes_alike(served, needs),
            has_form=served.limits.constraints or not needs_form,
            has_drafter=not drafter or drafter in [each.fingerprint for each in served.drafters],
            avoid_until=self._avoid_until,
            unread_tokens=unread_tokens,
            read_ms=served.read_ms or served.row_ms,  # an older version says only the latter, which is a little more
        )

    @property
    def _has_answered(self) -> bool:
        """Whether a moa server has answered at the address."""
        return self.first_rtt_ms is not None

    def _explained(self, error: grpc.RpcError) -> MoaError:
        """Why a call has failed, and what this device's user can do."""
        return call_error(error, self.address, self.security, has_answered=self._has_answered)

    async def embed(self, tokens: Sequence[int]) -> pb.EmbedResponse:
        request = pb.EmbedRequest(tokens=tokens)
        try:
            with heeded_cancellation(), self._channel.current().used() as calls:
                return await calls.Embed(request, timeout=EMBED_SECONDS, metadata=self.security.metadata)
        except grpc.RpcError as error:
            raise self._explained(error) from None

    def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        return self._read(
            lambda stub: stub.FetchDrafter(request, metadata=self.security.metadata), pb.FetchDrafterResponse
        )

    async def _read(
        self, begin: Callable[[ServerCalls], grpc.aio.UnaryStreamCall[Any, Response]], kind: type[Response]
    ) -> AsyncGenerator[Response]:
        transport = self._channel.current()
        transport.enter()
        call = begin(transport.stub)
        try:
            while True:
                with heeded_cancellation():
                    async with asyncio.timeout(self.silence_seconds):
                        message = await call.read()
                if not isinstance(message, kind):  # gRPC's end of the stream
                    return
                self.traffic.down_bytes += message.ByteSize() + FRAME_OVERHEAD_BYTES
                yield message
        except TimeoutError:
            raise UnavailableError(
                f"The server at {self.label} has sent nothing for {self.silence_seconds:g} s."
            ) from None
        except grpc.RpcError as error:
            raise self._explained(error) from None
        finally:
            call.cancel()
            transport.leave()

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: StreamTraffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        """Opens a conversation.

        Args:
            seconds: how long to wait; None: as for connecting.
            traffic: counts its bytes; None: this server's own.
            session: the conversation's name for proxies, the same on each of its streams; empty: none.
        """
        transport = self._channel.current()
        transport.enter()
        metadata = self.security.metadata_with({TRACEPARENT: message.ask.traceparent, SESSION: session})
        call = transport.stub.Converse(metadata=metadata)
        stream = Stream(call, traffic or self.traffic, transport.leave, self._explained)
        try:
            async with asyncio.timeout(seconds or self.connect_seconds):
                await stream.send(pb.ClientFrame(open=message))
                frame = await stream.receive()
            if frame.WhichOneof("frame") != "opened":
                raise ProtocolError("Opened as the first frame", str(frame.WhichOneof("frame")))
        except TimeoutError:
            stream.cancel()
            raise UnavailableError(f"The server at {self.label} did not open the conversation in time.") from None
        except BaseException:
            stream.cancel()
            raise
        self.named = successors_among(frame.opened.servers) or self.named
        return stream, frame.opened


def serves(served: pb.DescribeResponse, needs: pb.Identity) -> bool:
    model = pb.Identity(target_fingerprint=needs.target_fingerprint, tokenizer_hash=needs.tokenizer_hash)
    try:
        check_identity(served.identity, model)
    except MismatchError:
        return False
    return True


def computes_alike(served: pb.DescribeResponse, needs: pb.Identity) -> bool:
    """Whether it decides with the same arithmetic, so that a text continues to the letter."""
    return not needs.execution or served.identity.execution == needs.execution


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
