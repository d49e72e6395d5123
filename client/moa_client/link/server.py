"""One server: its address and protection, the connection to it, what it has said, and why it cannot be reached.

State: its newest description, the time of a round trip, the newest failure, until when others are preferred, and the
connection, which all conversations there share. Every wait on the peer has a deadline; every failure becomes one error
of the catalogue. Invariant: each stream and call holds its channel, which closes itself when nobody holds it any more:
replacing a connection harms no other conversation.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_shared.errors import AuthenticationError, MoaError, ProtocolError, UnavailableError
from moa_shared.programs.addresses import host_of, ip_of, is_loopback, successors_among
from moa_shared.programs.run_loop import turns
from moa_shared.protocol import handshake_checks as checks
from moa_shared.protocol.handshake_checks import TlsReason, check_protocol, clean_texts, error_from_rpc
from moa_shared.tracing import TRACEPARENT

from moa_client.link.security import PLAIN, Security, shake_hands
from moa_client.link.stream import FRAME_OVERHEAD_BYTES, Stream, StreamTraffic, heeded_cancellation

MOST_LOAD = 0.95  # beyond it the time of a step says little: the server may refuse at any moment


@dataclass(frozen=True, slots=True)
class ServerRank:
    rtt_ms: float | None = None  # a round trip; None: not measured
    step_ms: float = 0.0  # a plain step, of a server that has nothing else to do
    load: float = 0.0  # how much of it is taken, 0 to 1
    has_model: bool | None = None  # whether it serves the conversation's model; None: not known
    has_execution: bool = True  # whether it decides with the arithmetic on which the text began
    has_drafter: bool = True  # whether it has memory for this device's drafter
    avoid_until: float = 0.0  # it has failed or refused, and is the last resort until then
    unread_tokens: int = 0  # of the conversation's text, that it must read first
    read_ms: float = 0.0  # how long it takes to read one

    def is_avoided(self, now: float) -> bool:
        return now < self.avoid_until or self.load >= 1

    def place(self, now: float) -> tuple[bool, bool, float, bool, bool, float]:
        """Its place in the order in which to try servers; one of another model comes last.

        A text should continue as it began, so a server of another execution comes after all of the same that can be
        had. Drafts from here make up for many milliseconds, so one without memory for the drafter comes after all that
        have it. Then the expected time of the next token, and a round trip, decides.
        """
        idle_ms = self.step_ms + self.unread_tokens * self.read_ms
        cost_ms = math.inf if self.rtt_ms is None else self.rtt_ms + idle_ms / (1 - min(self.load, MOST_LOAD))
        is_avoided = self.is_avoided(now)
        until = self.avoid_until if is_avoided else 0.0
        return self.has_model is False, is_avoided, until, not self.has_execution, not self.has_drafter, cost_ms


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
DESCRIBE_ROUND_TRIPS = 2  # of a call without a connection, which takes one of them; TLS takes another
EMBED_AT_ONCE = 4  # calls of one request
EMBED_SECONDS = 120.0  # a whole context, on a server with others; a silent one is noticed earlier
PROBE_SECONDS = 2.0  # to find out why a connection was of no use
SESSION = "moa-session"  # of a stream's metadata: the conversation's name
log = logging.getLogger(__name__)


class ServerCalls(Protocol):
    """The calls of a server that this program makes: the types that the generated stub lacks."""

    Converse: grpc.aio.StreamStreamMultiCallable[pb.ClientFrame, pb.ServerFrame]
    Describe: grpc.aio.UnaryUnaryMultiCallable[pb.DescribeRequest, pb.DescribeResponse]
    Embed: grpc.aio.UnaryUnaryMultiCallable[pb.EmbedRequest, pb.EmbedResponse]
    FetchDrafter: grpc.aio.UnaryStreamMultiCallable[pb.FetchDrafterRequest, pb.FetchDrafterResponse]


class Server:
    """A server, as all conversations know it. `address`: HOST:PORT; `silence_seconds`: the longest wait for a frame."""

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
        self.rtt_ms: float | None = None  # a round trip; roughly, until a call has found a connection open
        self.channel_number = 0  # of the connection that the next call uses; `renew` gives another one
        self._avoid_until = 0.0
        self._window_bytes = WINDOW_BYTES
        self._credentials = security.credentials()
        self._channel: grpc.aio.Channel | None = None

    def peer(self, address: str) -> Server:
        """Another server, protected as this one is.

        One that is named by its number must have a certificate for the name that this one has: pods have none for
        their numbers, and a server with one for the name is as good as this one.
        """
        own_name = self.security.server_name or host_of(self.address)
        shares_name = ip_of(host_of(address)) and not ip_of(own_name) and not is_loopback(own_name)
        security = replace(self.security, server_name=own_name if shares_name else "")
        return Server(address, self.connect_seconds, self.silence_seconds, security)

    def _connected(self) -> tuple[grpc.aio.Channel, ServerCalls]:
        """What the next call uses, and holds: a new connection has the certificates that this device has now."""
        if self._channel is None:
            try:
                self._credentials = self.security.credentials()
            except MoaError as error:  # half of a renewal: the former ones will do until the rest is there
                log.warning("certificates for %s are not read again: %s", self.label, error)
            window = ("grpc.http2.lookahead_bytes", self._window_bytes)
            options = [*CHANNEL_OPTIONS, window, *self.security.options(self.address)]
            self._channel = self.security.open_channel(self.address, self._credentials, options)
        return self._channel, moa_pb2_grpc.MoaStub(self._channel)

    def renew(self, lost: int) -> None:
        """Replaces a lost connection: packets lost in an outage delay the old one for seconds after it.

        `lost`: its number; if another conversation has replaced it, nothing happens.
        """
        if lost == self.channel_number:
            self._channel = None
            self.channel_number += 1

    def widened(self, window_bytes: int) -> Server:
        """The same server over another connection, for a download: so many bytes may be in flight to us."""
        other = copy(self)
        other._window_bytes, other._channel = window_bytes, None
        return other

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def describe(self, seconds: float | None = None, prefix_hashes: Sequence[int] = ()) -> pb.DescribeResponse:
        """What the server serves; after a failure, which is remembered, the next call is over another connection.

        `seconds`: how long to wait; None: as for connecting. `prefix_hashes`: of a text after each 64th token: how much
        of it need the server not read?
        """
        (channel, calls), seconds = self._connected(), seconds or self.connect_seconds
        was_open = channel.get_state() is grpc.ChannelConnectivity.READY
        number, began = self.channel_number, time.monotonic()
        request = pb.DescribeRequest(prefix_hashes=prefix_hashes)
        self.described_at = began
        try:
            try:
                with heeded_cancellation():
                    served = await calls.Describe(
                        request, timeout=seconds, wait_for_ready=False, metadata=self.security.metadata()
                    )
            except grpc.RpcError as error:
                raise await self._reason(error, seconds) from None
            clean_texts(served)
            took_ms = 1e3 * (time.monotonic() - began)
            if was_open or self.rtt_ms is None:
                self.rtt_ms = took_ms if was_open else took_ms / (DESCRIBE_ROUND_TRIPS + self.security.tls)
            check_protocol(served.protocol_version, checks.PROTOCOL_VERSION)
        except MoaError as error:
            self.error = error
            self.renew(number)
            raise
        self.error, self.served, self.named = None, served, successors_among(served.servers)
        return served

    def avoid(self, seconds: float) -> None:
        """For so long, it is the last resort."""
        self._avoid_until = time.monotonic() + seconds

    def rank(self, needs: pb.Identity, unread_tokens: int = 0) -> ServerRank:
        """For a conversation that needs this target, tokenizer and drafter, and whose text it would have to read."""
        served = self.served
        if served is None:
            return ServerRank(avoid_until=self._avoid_until)
        drafter = needs.drafter_fingerprint
        return ServerRank(
            self.rtt_ms,
            served.step_ms,
            served.load,
            has_model=serves(served, needs),
            has_execution=not needs.execution or served.identity.execution == needs.execution,
            has_drafter=not drafter or drafter in [each.fingerprint for each in served.drafters],
            avoid_until=self._avoid_until,
            unread_tokens=unread_tokens,
            read_ms=served.read_ms or served.row_ms,  # an older version says only the latter, which is a little more
        )

    def left_out(self, needs: pb.Identity) -> str:
        """Why conversations that need this pass it over, as a sentence; empty: they do not."""
        if self.error is not None:
            return f"{self.label} is left out for now: {self.error.message}"
        if self.served is not None and not serves(self.served, needs):
            return f"{self.label} is left out: it serves {self.served.identity.target_id}, not {needs.target_id}."
        return ""

    async def embed(self, texts: Sequence[Sequence[int]]) -> list[pb.EmbedResponse]:
        """The vectors of some texts, given by their tokens: a few at a time, since more would wait for each other."""
        (_channel, calls), metadata = self._connected(), self.security.metadata()
        asked, vectors = [pb.EmbedRequest(tokens=tokens) for tokens in texts], list[pb.EmbedResponse]()
        try:
            with heeded_cancellation():
                while few := asked[len(vectors) : len(vectors) + EMBED_AT_ONCE]:
                    under_way = [calls.Embed(each, timeout=EMBED_SECONDS, metadata=metadata) for each in few]
                    vectors += await asyncio.gather(*under_way)
        except grpc.RpcError as error:
            raise await self._reason(error) from None
        return vectors

    async def fetch(self, request: pb.FetchDrafterRequest) -> AsyncIterator[pb.FetchDrafterResponse]:
        _channel, calls = self._connected()
        call = calls.FetchDrafter(request, metadata=self.security.metadata())
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
            silent = f"The server at {self.label} has sent nothing for {self.silence_seconds:g} s."
            raise UnavailableError(silent) from None
        except grpc.RpcError as error:
            raise await self._reason(error) from None
        finally:
            call.cancel()

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: StreamTraffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        """Opens a conversation, and waits for so long; None: as for connecting. `session`: its name for proxies."""
        channel, calls = self._connected()
        call = calls.Converse(
            None, metadata=self.security.metadata({TRACEPARENT: message.ask.traceparent, SESSION: session})
        )
        stream = Stream(call, traffic or self.traffic, self._reason, channel)
        try:
            async with turns(seconds or self.connect_seconds):
                await stream.send(pb.ClientFrame(open=message))
                frame = await stream.receive()
            if frame.WhichOneof("frame") != "opened":
                raise ProtocolError("Opened as the first frame", str(frame.WhichOneof("frame")))
        except BaseException as error:
            stream.cancel()
            if isinstance(error, TimeoutError):
                late = f"The server at {self.label} did not open the conversation in time."
                raise UnavailableError(late) from None
            raise
        self.named = successors_among(frame.opened.servers) or self.named
        return stream, frame.opened

    async def _reason(self, error: grpc.RpcError, seconds: float | None = None) -> MoaError:
        """Why a call has failed: its own words, gRPC's reason, or what TLS alone can tell.

        `seconds`: how long a description could take, which is the first call to a server; None: of another call.
        """
        has_answered, proxy = self.rtt_ms is not None, self.security.proxy(self.address)
        reason = error_from_rpc(error, has_answered=has_answered)
        if self.security.new_key and isinstance(reason, AuthenticationError):
            reason.hint = self.security.new_key  # what to do on this device
        is_own = checks.CODE_KEY in dict(error.trailing_metadata() or ())  # type: ignore[arg-type]  # a moa server's words
        if is_own or (seconds is None and proxy is None) or not isinstance(reason, UnavailableError):
            return reason
        words, hint, host = error.details() or "", reason.hint, host_of(self.address)
        if proxy is not None:
            hint = f"Ask who runs it; or, if the server is reached without it, put {host} into no_proxy."
        if seconds is None:
            return UnavailableError(f"{reason.message} It was tried by way of the {proxy}.", hint=hint)
        why = checks.call_reason(error.code(), words, has_answered=has_answered)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            why = f"nothing answered within {seconds:g} s"
        elif error.code() is grpc.StatusCode.UNAVAILABLE:
            is_known = why in checks.NOT_CONNECTED or (has_answered and self.security.certificate is None)
            found: object = checks.tls_reason(words)
            if found is None and self.security.tls and not is_known and proxy is None:
                with suppress(OSError):  # a timeout too
                    async with turns(min(seconds, PROBE_SECONDS)):
                        found = await shake_hands(self.address, self.security)
            if isinstance(found, TlsReason):  # the hint in the message: a chat that starts without its server has none
                unusable = f"The server at {self.label} cannot be used: {found.why}. {found.hint}"
                return UnavailableError(unusable, hint="")
        way = f"The {proxy}, leads to" if proxy is not None else "There is"
        return UnavailableError(f"{way} no moa server at {self.label}: {why}.", hint=hint)


def serves(served: pb.DescribeResponse, needs: pb.Identity) -> bool:
    """Whether it has this target and tokenizer."""
    has, target = served.identity, needs.target_fingerprint
    return target in (b"", has.target_fingerprint) and needs.tokenizer_hash == has.tokenizer_hash
