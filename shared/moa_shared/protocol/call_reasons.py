"""Why a server cannot be reached, in words for people: gRPC's, OpenSSL's and the system's are for developers. Pure.

Each reason completes "The server cannot be reached: ". Invariant: there is always one, and it has no word of gRPC.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

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
