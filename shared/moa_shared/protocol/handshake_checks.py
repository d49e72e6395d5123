"""The checks that both ends make of each other, how errors cross the wire, and why a server cannot be reached.

Errors cross the wire as a gRPC status with two trailing metadata entries, the catalogue's code and the hint.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
        name = client.target_id[:MOST_NAME_CHARACTERS] or "no name"
        served = f"{server.target_id} ({_short(server.target_fingerprint)})"
        raise MismatchError("target model", served, f"{name} ({_short(client.target_fingerprint)})")
    if client.tokenizer_hash != server.tokenizer_hash:
        raise MismatchError("tokenizer", _short(server.tokenizer_hash), _short(client.tokenizer_hash))
    fingerprints = [drafter.fingerprint for drafter in drafters]
    if client.drafter_fingerprint and client.drafter_fingerprint not in fingerprints:
        served, hint = ", ".join(map(_short, fingerprints)) or "none", "Give both ends the same --drafter, or none."
        raise MismatchError("drafter", served, _short(client.drafter_fingerprint), hint=hint)


def manifest_sha256(manifest: pb.PartManifest) -> bytes:
    """The hash by which both ends name what a client may fetch: names, sizes and hashes, and whose files they are."""
    return hashlib.sha256(manifest.SerializeToString(deterministic=True)).digest()


def _short(digest: bytes) -> str:
    return digest.hex()[:12] if digest else "none"


def error_status(error: MoaError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """Status, message and trailing metadata with which a call that met `error` ends."""
    trailing: list[tuple[str, str | bytes]] = [(CODE_KEY, error.code), (HINT_KEY, error.hint.encode())]
    if isinstance(error, OverloadedError):
        trailing.append((RETRY_AFTER_KEY, str(error.retry_after_ms)))
    if isinstance(error, UnavailableError) and error.servers:
        trailing.append((SERVERS_KEY, ",".join(error.servers)))
    return grpc.StatusCode[error.grpc_status], error.message, tuple(trailing)


def error_from_rpc(error: grpc.RpcError, *, has_answered: bool = False) -> MoaError:
    """The catalogue's error for a failed call; `has_answered`: as of `call_reason`."""
    metadata: dict[str, str | bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    status, words = error.code(), error.details() or ""
    if CODE_KEY in metadata:
        hint, told = metadata.get(HINT_KEY, b""), str(metadata.get(RETRY_AFTER_KEY))
        hint = hint.decode(errors="replace") if isinstance(hint, bytes) else hint
        reported = error_from_code(str(metadata[CODE_KEY]), words or "The server has given no reason.", hint)
        if isinstance(reported, OverloadedError) and told.isascii() and told.isdigit() and len(told) < 10:
            reported.retry_after_ms = min(int(told), MOST_RETRY_AFTER_MS)  # it cannot send a client away for good
        if isinstance(reported, UnavailableError):
            reported.servers = successors_among(str(metadata.get(SERVERS_KEY, "")).split(","))
        return reported
    log.info("a call has failed: %s: %s", status.name, plain_line(words, MAX_TEXT_CHARACTERS))
    match status:
        case grpc.StatusCode.UNAUTHENTICATED:
            return AuthenticationError("The server does not accept this client's API key, or wants one.")
        case grpc.StatusCode.PERMISSION_DENIED:
            return ForbiddenError("The server does not permit this to this client's API key.")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in words:
            hint = "Send less at once."
            return OverloadedError("A message is larger than the server, or this client, takes.", hint=hint)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return OverloadedError("The server, or a proxy before it, has no room for this call.")
    reason = tls_reason(words)
    why = reason.why if reason is not None else call_reason(status, words, has_answered=has_answered)
    return UnavailableError(f"The server cannot be reached: {why}.", hint=reason.hint if reason is not None else None)


def clean_texts(message: Message) -> None:
    """Makes each text in a peer's message one harmless line, in place."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                clean_texts(each)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            value[:] = [plain_line(each, MAX_TEXT_CHARACTERS) for each in value]
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, plain_line(value, MAX_TEXT_CHARACTERS))


# gRPC's and the system's words are for developers; these, for people, complete "The server cannot be reached: ".
# The first ones mean that nothing listened: there is nothing to learn from another connection.
REFUSED = "the connection was refused"
NO_NAME_SERVER = "no name server answers"
UNKNOWN_NAME = "the name is not known"
NO_ROUTE = "no network of this device leads there"
NOT_CONNECTED = (REFUSED, UNKNOWN_NAME, NO_NAME_SERVER, NO_ROUTE)
NO_ANSWER = "nothing answered in time"
CLOSES = "what listens there closes the connection: it speaks TLS only, or no gRPC, or has no room"
CLOSED = "the connection was closed"
LOST = "the connection could not be made, or was lost"
FAILED = "what answers there is no moa server, or does not work"
_SIGNS: Mapping[str, tuple[str, ...]] = {
    "the proxy lets no connection through, or finds nothing there": ("HTTP proxy returned",),
    REFUSED: ("refused",),
    NO_NAME_SERVER: ("contact DNS servers", "contacting DNS servers", "emporary failure in name resolution"),
    UNKNOWN_NAME: ("resol", "ame or service not known", "No address associated"),
    NO_ROUTE: ("unreachable", "No route to host", "is down"),
    "a connection was accepted, but nothing came over it": ("timed out before receiving SETTINGS",),
    NO_ANSWER: ("handshaker shutdown", "timed out"),
    "what listens there does not speak gRPC": ("Failed parsing HTTP/2", "SETTINGS", "http2 header with status"),
    "TLS could not be set up": ("andshake",),
    "nothing has come over the connection for too long": ("keepalive", "ping timeout"),
    CLOSED: ("onnection reset", "aborted", "closed", "Stream removed", "roken pipe", "GOAWAY", "RST_STREAM"),
}
_OF_STATUS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: NO_ANSWER,
    grpc.StatusCode.UNIMPLEMENTED: "what listens there is another gRPC service",
}


def call_reason(status: grpc.StatusCode, words: str, *, has_answered: bool = False) -> str:
    """What gRPC's status and details mean that no moa server has sent.

    `has_answered`: a moa server has, at this address: what closes connections there now may be a tunnel, or a proxy.
    """
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    why = next((why for why, signs in _SIGNS.items() if any(sign in words for sign in signs)), None)
    if why == CLOSED and "failed to connect" in words:
        return f"{CLOSED}; the server may have ended" if has_answered else CLOSES
    return why or (LOST if status.name in ("UNAVAILABLE", "CANCELLED", "ABORTED") else FAILED)


class TlsReason(NamedTuple):
    """A reason in words."""

    why: str  # completes "The server cannot be used: "
    hint: str  # what to do


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
_TLS_SIGNS = {  # Envoy's words come first: what they go on with is about a connection of its own
    ("no healthy upstream", "upstream connect error"): TlsReason(
        "the proxy there reaches no server behind it",
        "Whoever runs it must look after these servers, and its settings.",
    ),
    ("certificate has expired",): TlsReason(
        "its certificate has expired", "Whoever runs the server must renew it; or this device's clock is wrong."
    ),
    ("not yet valid",): TlsReason("its certificate is not valid yet", "Check this device's clock."),
    ("Hostname", "IP address mismatch"): TlsReason(
        "its certificate is for another name",
        "Use the name or address that the certificate is for, or have a certificate made for this one.",
    ),
    ("WRONG_VERSION_NUMBER",): NO_TLS,
    ("CERTIFICATE_VERIFY_FAILED", "issuer certificate", "self-signed", "self signed"): TlsReason(
        "nobody whom this device trusts vouches for its certificate",
        "Name the certificate of the authority that does with --tls-ca FILE.",
    ),
}


def tls_reason(words: str) -> TlsReason | None:
    """What the words of a failure mean; None: nothing about TLS is in them."""
    return next((reason for signs, reason in _TLS_SIGNS.items() if any(sign in words for sign in signs)), None)
