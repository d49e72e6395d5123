"""The link to a server: one gRPC channel at a time, shared by the streams of all conversations.

State: the newest channel, and those that were replaced while others used them. Every wait on the peer has a deadline;
every failure becomes one error of the catalogue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import DeniedError, MoaError, OverloadedError, ProtocolError, UnavailableError
from moa_shared.programs.addresses import host_of, is_loopback, successors_among
from moa_shared.protocol.call_reasons import NOT_CONNECTED, call_reason
from moa_shared.protocol.handshake_checks import CODE_KEY, PROTOCOL_VERSION, check_protocol, clean_texts, error_from_rpc
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.tls_reasons import TlsReason, tls_reason
from moa_shared.tracing.spans import TRACEPARENT

from moa_client.link.cancellation import heeded_cancellation
from moa_client.link.dialer import SESSION, Dialer
from moa_client.link.security import PLAIN, Security, open_channel
from moa_client.link.stream import FRAME_OVERHEAD_BYTES, Stream, Traffic
from moa_client.link.tls.handshake import find_reason
from moa_client.link.transport import Transport

if TYPE_CHECKING:
    from moa_client.link.routing.route import Route

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
LOOK_SECONDS = 60.0  # a fleet changes slowly, and a replica that is gone is passed over
DESCRIBE_ROUND_TRIPS = 2  # of the first call; one is for the connection, and TLS takes another
PROBE_SECONDS = 2.0  # to find out why a connection was of no use
log = logging.getLogger(__name__)


class Link:
    """A connection to one server, replaced when it is lost.

    Args:
        address: HOST:PORT.
        connect_seconds: how long to wait for it.
        silence_seconds: the longest wait for a frame.
        security: TLS and key.
        name: that the user gave it.

    Raises:
        ConfigError: the key, or what is said, could be read on the way.
        MoaError: a file of the protection cannot be used.
    """

    def __init__(
        self,
        address: str,
        connect_seconds: float,
        silence_seconds: float,
        security: Security = PLAIN,
        name: str = "",
    ) -> None:
        security.check(address)
        self.address = address
        self.name = name
        self.label = f"{name} ({address})" if name else address  # for people
        self.traffic = Traffic()  # of downloads, and of streams that are not counted by themselves
        self.connect_seconds = connect_seconds
        self.silence_seconds = silence_seconds
        self.security = security
        self.served: pb.DescribeResponse | None = None  # the newest description
        self.successors: Route | None = None  # this server and those that it has named to go on in its place
        self.rtt_ms: float | None = None  # at the newest description, which may have opened the connection
        self._described_at = time.monotonic()  # or made
        self._looking: asyncio.Task[None] | None = None  # whom it names now
        self._window_bytes = WINDOW_BYTES
        self._stamps = security.stamps()
        self._credentials = security.credentials()
        self._replaced: list[Transport] = []
        self._transport = self._make_transport(0)

    def _make_transport(self, number: int) -> Transport:
        window = ("grpc.http2.lookahead_bytes", self._window_bytes)
        options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS, window, *self.security.options(self.address)]
        return Transport(open_channel(self.address, self._credentials, options), number)

    @property
    def named(self) -> tuple[str, ...]:
        """Others of the server's fleet, HOST:PORT, as it has said."""
        return successors_among(self.served.servers) if self.served is not None else ()

    @property
    def channel_number(self) -> int:
        """Of the channel that the next call uses; `renew` gives another one."""
        return self._current().number

    def _current(self) -> Transport:
        """The channel for the next call: another one if certificates have changed since."""
        stamps = self.security.stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._credentials = self.security.credentials()
            except MoaError as error:  # half of a renewal: the former ones will do until the rest is there
                log.warning("certificates for %s are not read again: %s", self.label, error)
            else:
                self.renew(self._transport.number)
        return self._transport

    def renew(self, lost: int) -> None:
        """Replaces a lost connection: packets lost in an outage delay the old one for seconds after it.

        Args:
            lost: number of the channel that was lost; if another conversation has replaced it, nothing happens.
        """
        if lost != self._transport.number:
            return
        before, self._transport = self._transport, self._make_transport(lost + 1)
        before.replace()
        self._replaced = [each for each in (*self._replaced, before) if not each.is_closed]

    def refresh(self) -> None:
        """Replaces a connection that is not there: gRPC would wait before it tries again."""
        if self._transport.is_down:
            self.renew(self._transport.number)

    def widened(self, window_bytes: int, manifest_sha256: bytes = b"") -> Link:
        """Another connection to the same server, for a download; its traffic is counted here.

        Args:
            window_bytes: bytes a call may have in flight to us.
            manifest_sha256: of what is to be fetched; this link has one server, which has it or not.
        """
        other = copy(self)
        other._window_bytes, other.successors, other._looking = window_bytes, None, None
        other._replaced, other._transport = [], other._make_transport(0)
        return other

    @property
    def skipped(self) -> list[str]:
        """Servers that are left out: none, as there is only one."""
        return []

    def dialer(self, text: PrefixHashes) -> Dialer:
        """Opens streams for one conversation.

        Args:
            text: of the conversation, as it is at any time.
        """
        from moa_client.link.routing.following_dialer import FollowingDialer  # which needs this module

        return FollowingDialer(self, text)

    def towards(self, address: str) -> Link:
        """A link to another server, protected as this one is.

        One that is named by its number must have a certificate for the name that this one has: nobody makes
        certificates for the numbers of pods, and whoever has one for the name is as good as this server.

        Raises:
            ConfigError: the key, or what is said, could be read on the way.
        """
        own_name = self.security.server_name or host_of(self.address)
        shares_name = _is_number(host_of(address)) and not _is_number(own_name) and not is_loopback(own_name)
        security = replace(self.security, server_name=own_name if shares_name else "")
        return Link(address, self.connect_seconds, self.silence_seconds, security)

    def look_around(self) -> None:
        """Asks in the background whom the server names now, if that was long ago."""
        if self._looking is None and time.monotonic() > self._described_at + LOOK_SECONDS:
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        rtt_ms = self.rtt_ms
        try:
            await self.describe()
        except MoaError as error:
            log.info("%s does not say whom it names: %s", self.label, error.message)
            self._described_at = time.monotonic()
        finally:
            self.rtt_ms = rtt_ms  # of the description that opened the connection
            self._looking = None

    async def describe(
        self, seconds: float | None = None, padding: bytes = b"", prefix_hashes: Sequence[int] = ()
    ) -> pb.DescribeResponse:
        """What the server serves.

        Args:
            seconds: how long to wait; None: as for connecting.
            padding: fields that no version knows, to measure how much the link carries.
            prefix_hashes: of a text after each 64th token: how much of it need the server not read?

        Raises:
            UnavailableError: nothing at the address speaks moa's protocol.
            DeniedError: the key is refused.
            MismatchError: another version of the protocol.
        """
        began = time.monotonic()
        try:
            request = pb.DescribeRequest.FromString(padding)
            request.prefix_hashes.extend(prefix_hashes)
            with heeded_cancellation(), self._current().used() as stub:
                response = await stub.Describe(
                    request,
                    timeout=seconds or self.connect_seconds,
                    wait_for_ready=False,
                    metadata=self.security.metadata,
                )
        except grpc.RpcError as error:
            raise await self._unreachable(error, seconds or self.connect_seconds) from None
        self.rtt_ms = 1e3 * (time.monotonic() - began) / (DESCRIBE_ROUND_TRIPS + self.security.tls)
        self._described_at = time.monotonic()
        clean_texts(response)
        self.served = response
        check_protocol(response.protocol_version, PROTOCOL_VERSION)
        return response

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        """One call of FetchDrafter, message by message.

        Raises:
            MoaError: the server refuses, or is silent.
        """
        transport = self._current()
        transport.enter()
        call = transport.stub.FetchDrafter(request, metadata=self.security.metadata)
        try:
            while True:
                with heeded_cancellation():
                    async with asyncio.timeout(self.silence_seconds):
                        message = await call.read()
                if not isinstance(message, pb.FetchDrafterResponse):  # gRPC's end of the stream
                    return
                self.traffic.down_bytes += message.ByteSize() + FRAME_OVERHEAD_BYTES
                yield message
        except TimeoutError:
            raise UnavailableError(
                f"The server at {self.label} has sent nothing for {self.silence_seconds:g} s."
            ) from None
        except grpc.RpcError as error:
            raise self.security.advised(error_from_rpc(error)) from None
        finally:
            call.cancel()
            transport.leave()

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: Traffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        """Opens a conversation.

        Args:
            seconds: how long to wait; None: as for connecting.
            traffic: counts its bytes; None: this link's own.
            session: the conversation's name for proxies, the same on each of its streams; empty: none.

        Raises:
            MoaError: the server refuses, or does not answer.
        """
        transport = self._current()
        transport.enter()
        stream = Stream(
            transport.stub.Converse(
                metadata=self.security.metadata_with({TRACEPARENT: message.ask.traceparent, SESSION: session})
            ),
            traffic or self.traffic,
            transport.leave,
            self.security.advised,
        )
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
        return stream, frame.opened

    async def _unreachable(self, error: grpc.RpcError, seconds: float) -> MoaError:
        """Why there is no conversation with this address, in one sentence."""
        reason = error_from_rpc(error)
        trailing: Any = error.trailing_metadata() or ()
        if CODE_KEY in dict(trailing) or isinstance(reason, DeniedError | OverloadedError):
            return self.security.advised(reason)  # a moa server's words, or those of what guards it
        status, words = error.code(), error.details() or ""
        why = call_reason(status, words)
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            why = f"nothing answered within {seconds:g} s"
        elif status is grpc.StatusCode.UNAVAILABLE and (found := await self._tls_reason(words, why, seconds)):
            # all of it in the message: a chat that starts without its server shows no hints
            return UnavailableError(f"The server at {self.label} cannot be used: {found.why}. {found.hint}", hint="")
        return UnavailableError(f"There is no moa server at {self.label}: {why}.")

    async def _tls_reason(self, words: str, why: str, seconds: float) -> TlsReason | None:
        """What TLS has to do with a failure; a link that worked before is not held up by a look at it."""
        worked = self.rtt_ms is not None and self.security.certificate is None
        if (reason := tls_reason(words)) or worked or why in NOT_CONNECTED:
            return reason
        return await find_reason(self.address, self.security, min(seconds, PROBE_SECONDS))

    async def close(self) -> None:
        """Ends all its connections, to its successors too, and what runs on them."""
        if (looking := self._looking) is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        successors, self.successors = self.successors, None
        if successors is not None:
            await successors.close()
        for transport in (*self._replaced, self._transport):
            await transport.close()


def _is_number(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@asynccontextmanager
async def connect(
    address: str, connect_seconds: float, silence_seconds: float, security: Security = PLAIN
) -> AsyncIterator[Link]:
    """A link that is closed at the end."""
    link = Link(address, connect_seconds, silence_seconds, security)
    try:
        yield link
    finally:
        await link.close()
