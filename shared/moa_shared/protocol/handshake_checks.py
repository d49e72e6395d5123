"""The checks that both ends make of each other, and how errors cross the wire.

Errors cross the wire as a gRPC status with two trailing metadata entries, the catalogue's code and the hint.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb

from moa_shared.errors import (
    AuthenticationError,
    ForbiddenError,
    MismatchError,
    MoaError,
    OverloadedError,
    UnavailableError,
    error_from_code,
)
from moa_shared.plain_text import plain_line
from moa_shared.programs.addresses import successors_among

PROTOCOL_VERSION = 4
CODE_KEY = "moa-error-code"
HINT_KEY = "moa-error-hint-bin"  # binary: a hint may hold any text
RETRY_AFTER_KEY = "moa-retry-after-ms"
SERVERS_KEY = "moa-servers"  # HOST:PORT,... of those that go on in the place of a server that is shutting down
MOST_RETRY_AFTER_MS = 60_000
IDLE = "idle"  # GoAway's reason where nothing was asked for long: the next question opens another stream
MAX_TEXT_CHARACTERS = 300  # of a name or a reason that a peer gives: more would not fit on a line
TOO_LARGE = "larger than max"  # in gRPC's words about a message
MOST_NAME_CHARACTERS = 80  # of a peer's words that are repeated to it; gRPC drops a status of more than 16 kB
log = logging.getLogger(__name__)


def check_protocol(server: int, client: int) -> None:
    """Raises MismatchError if the ends speak different versions of the protocol."""
    if server != client:
        older = "client" if client < server else "server"
        raise MismatchError("protocol version", str(server), str(client), hint=f"Update moa on the {older}.")


def check_identity(server: pb.Identity, client: pb.Identity, drafters: Sequence[pb.Drafter] = ()) -> None:
    """Compares what both ends must hold in common. A client without a drafter that reads memory names none."""
    if client.target_fingerprint and client.target_fingerprint != server.target_fingerprint:
        raise MismatchError(
            "target model",
            f"{server.target_id} ({_short(server.target_fingerprint)})",
            f"{client.target_id[:MOST_NAME_CHARACTERS] or 'no name'} ({_short(client.target_fingerprint)})",
        )
    if client.tokenizer_hash != server.tokenizer_hash:
        raise MismatchError("tokenizer", _short(server.tokenizer_hash), _short(client.tokenizer_hash))
    fingerprints = [drafter.fingerprint for drafter in drafters]
    if client.drafter_fingerprint and client.drafter_fingerprint not in fingerprints:
        raise MismatchError(
            "drafter",
            ", ".join(map(_short, fingerprints)) or "none",
            _short(client.drafter_fingerprint),
            hint="Give both ends the same --drafter, or start the client with --drafter none.",
        )


def manifest_sha256(manifest: pb.PartManifest) -> bytes:
    """The hash by which both ends name what a client may fetch: names, sizes and hashes, and whose files they are."""
    return hashlib.sha256(manifest.SerializeToString(deterministic=True)).digest()


def _short(digest: bytes) -> str:
    return digest.hex()[:12] if digest else "none"


def error_status(error: MoaError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """Status, message and trailing metadata with which a call that met `error` ends."""
    trailing: tuple[tuple[str, str | bytes], ...] = ((CODE_KEY, error.code), (HINT_KEY, error.hint.encode()))
    if isinstance(error, OverloadedError):
        trailing = (*trailing, (RETRY_AFTER_KEY, str(error.retry_after_ms)))
    if isinstance(error, UnavailableError) and error.servers:
        trailing = (*trailing, (SERVERS_KEY, ",".join(error.servers)))
    return grpc.StatusCode[error.grpc_status], error.message, trailing


def _retry_after_ms(told: str | bytes | None, default: int) -> int:
    """The delay that a server asks for, within reason: it cannot send a client away for good."""
    text = told if isinstance(told, str) else ""
    return min(int(text), MOST_RETRY_AFTER_MS) if text.isascii() and text.isdigit() and len(text) < 10 else default


def error_from_rpc(error: grpc.RpcError, *, has_answered: bool = False) -> MoaError:
    """The catalogue's error for a failed call."""
    metadata: dict[str, str | bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    status, words = error.code(), error.details() or ""
    if CODE_KEY in metadata:
        hint = metadata.get(HINT_KEY, b"")
        reported = error_from_code(
            str(metadata[CODE_KEY]),
            words or "The server has given no reason.",
            hint.decode(errors="replace") if isinstance(hint, bytes) else str(hint),
        )
        if isinstance(reported, OverloadedError):
            reported.retry_after_ms = _retry_after_ms(metadata.get(RETRY_AFTER_KEY), reported.retry_after_ms)
        if isinstance(reported, UnavailableError):
            reported.servers = successors_among(str(metadata.get(SERVERS_KEY, "")).split(","))
        return reported
    log.info("a call has failed: %s: %s", status.name, plain_line(words, MAX_TEXT_CHARACTERS))
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return AuthenticationError("The server does not accept this client's API key, or wants one.")
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return ForbiddenError("The server does not permit this to this client's API key.")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _no_room(words)
    if reason := tls_reason(words):
        return UnavailableError(f"The server cannot be reached: {reason.why}.", hint=reason.hint)
    return UnavailableError(f"The server cannot be reached: {call_reason(status, words, has_answered=has_answered)}.")


def _no_room(words: str) -> OverloadedError:
    """A refusal in the words of gRPC, or of a proxy."""
    if TOO_LARGE in words:
        hint = "Send less at once."
        return OverloadedError("A message is larger than the server, or this client, takes.", hint=hint)
    return OverloadedError("The server, or a proxy before it, has no room for this call.")


def clean_texts(message: Message) -> None:
    """Makes each text in a peer's message one harmless line, in place."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if field.is_repeated:
                value[:] = [plain_line(each, MAX_TEXT_CHARACTERS) for each in value]
            else:
                setattr(message, field.name, plain_line(value, MAX_TEXT_CHARACTERS))
        elif field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                clean_texts(each)


REFUSED = "the connection was refused"
UNKNOWN_NAME = "the name is not known"
NO_NAME_SERVER = "no name server answers"
NO_ROUTE = "no network of this device leads there"
NO_ANSWER = "nothing answered in time"
SILENT = "a connection was accepted, but nothing came over it"
NOT_GRPC = "what listens there does not speak gRPC"
CLOSES = "what listens there closes the connection: it speaks TLS only, or no gRPC, or has no room"
MAY_HAVE_ENDED = "the connection was closed; the server may have ended"
PROXY_REFUSES = "the proxy lets no connection through, or finds nothing there"
OTHER_SERVICE = "what listens there is another gRPC service"
NO_TLS_CONNECTION = "TLS could not be set up"
WENT_SILENT = "nothing has come over the connection for too long"
RESET = "the connection was reset"
CLOSED = "the connection was closed"
LOST = "the connection could not be made, or was lost"
ENDED = "the call was ended on the way"
FAILED = "what answers there is no moa server, or does not work"
# Nothing listened: there is nothing to learn from another connection.
NOT_CONNECTED = (REFUSED, UNKNOWN_NAME, NO_NAME_SERVER, NO_ROUTE)

_ATTEMPT = "failed to connect"  # gRPC's words before those of a connection that could not be made
_SIGNS: Mapping[str, tuple[str, ...]] = {
    PROXY_REFUSES: ("HTTP proxy returned",),
    REFUSED: ("refused",),
    NO_NAME_SERVER: ("contact DNS servers", "contacting DNS servers", "emporary failure in name resolution"),
    UNKNOWN_NAME: ("resol", "ame or service not known", "No address associated"),
    NO_ROUTE: ("unreachable", "No route to host", "is down"),
    SILENT: ("timed out before receiving SETTINGS",),
    NO_ANSWER: ("handshaker shutdown", "timed out"),
    NOT_GRPC: ("Failed parsing HTTP/2", "SETTINGS", "http2 header with status"),
    NO_TLS_CONNECTION: ("andshake",),
    WENT_SILENT: ("keepalive", "ping timeout"),
    RESET: ("onnection reset", "aborted"),
    CLOSED: ("closed", "Stream removed", "roken pipe", "GOAWAY", "RST_STREAM"),
}
_OF_STATUS = {
    grpc.StatusCode.UNAVAILABLE: LOST,
    grpc.StatusCode.DEADLINE_EXCEEDED: NO_ANSWER,
    grpc.StatusCode.UNIMPLEMENTED: OTHER_SERVICE,
    grpc.StatusCode.CANCELLED: ENDED,
    grpc.StatusCode.ABORTED: ENDED,
}


def call_reason(status: grpc.StatusCode, words: str, *, has_answered: bool = False) -> str:
    """What gRPC's status and details mean that no moa server has sent.

    `has_answered`: a moa server has, at this address: what closes connections there now may be a tunnel, or a proxy.
    """
    if status in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED):
        return _OF_STATUS[status]
    if (why := _reason_in(words)) is None:
        return _OF_STATUS.get(status, FAILED)
    if why in (RESET, CLOSED) and _ATTEMPT in words:
        return MAY_HAVE_ENDED if has_answered else CLOSES
    return why


def _reason_in(words: str) -> str | None:
    return next((why for why, signs in _SIGNS.items() if any(sign in words for sign in signs)), None)


@dataclass(frozen=True, slots=True)
class TlsReason:
    """A reason in words."""

    why: str  # completes "The server cannot be used: "
    hint: str  # what to do


EXPIRED = TlsReason(
    "its certificate has expired", "Whoever runs the server must renew it; or this device's clock is wrong."
)
NOT_YET = TlsReason("its certificate is not valid yet", "Check this device's clock.")
OTHER_NAME = TlsReason(
    "its certificate is for another name",
    "Use the name or address that the certificate is for, or have a certificate made for this one.",
)
UNKNOWN_AUTHORITY = TlsReason(
    "nobody whom this device trusts vouches for its certificate",
    "Name the certificate of the authority that does with --tls-ca FILE.",
)
NO_TLS = TlsReason(
    "what listens there does not speak TLS", "Leave --tls out, or use the port on which the server speaks TLS."
)
CLOSES_BEFORE_TLS = TlsReason(
    "it closes the connection before TLS begins",
    "It may have no room for another connection, or not speak TLS at this port.",
)
WANTS_CERTIFICATE = TlsReason(
    "it wants a certificate of this device",
    "Ask whoever runs the server for one, and name it with --tls-cert FILE --tls-key FILE.",
)
OWN_REFUSED = TlsReason(
    "it does not accept this device's certificate",
    "Ask whoever runs the server for one that has not expired, of an authority that it knows (its --tls-client-ca).",
)
NONE_BEHIND = TlsReason(
    "the proxy there reaches no server behind it", "Whoever runs it must look after these servers, and its settings."
)

_TLS_SIGNS: Mapping[TlsReason, tuple[str, ...]] = {
    # Envoy's words come first: what they go on with is about a connection of its own.
    NONE_BEHIND: ("no healthy upstream", "upstream connect error"),
    EXPIRED: ("certificate has expired",),
    NOT_YET: ("not yet valid",),
    OTHER_NAME: ("Hostname", "IP address mismatch"),
    NO_TLS: ("WRONG_VERSION_NUMBER",),
    UNKNOWN_AUTHORITY: ("CERTIFICATE_VERIFY_FAILED", "issuer certificate", "self-signed", "self signed"),
}


def tls_reason(words: str) -> TlsReason | None:
    """What the words of a failure mean; None: nothing about TLS is in them."""
    return next((reason for reason, signs in _TLS_SIGNS.items() if any(sign in words for sign in signs)), None)
