"""The checks that both ends make of each other, and how errors cross the wire.

Errors cross the wire as a gRPC status with two trailing metadata entries, the catalogue's code and the hint.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

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
from moa_shared.programs.addresses import successors_among
from moa_shared.protocol.call_reasons import call_reason, tls_reason
from moa_shared.text.plain_text import plain_line

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
