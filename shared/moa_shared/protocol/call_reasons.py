"""Why a server cannot be reached, in words for people: gRPC's and the system's own are for developers. Pure.

Each reason completes "The server cannot be reached: ". Invariant: there is always one, and it has no word of gRPC.
"""

from __future__ import annotations

import os
import re

import grpc

REFUSED = "the connection was refused"
UNKNOWN_NAME = "the name is not known"
NO_NAME_SERVER = "no name server answers"
NO_ROUTE = "no network of this device leads there"
NO_ANSWER = "nothing answered in time"
SILENT = "a connection was accepted, but nothing came over it"
NOT_GRPC = "what listens there does not speak gRPC"
CLOSES = "what listens there closes the connection: it does not speak gRPC, or has no room"
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
_SIGNS = (
    ("HTTP proxy returned", PROXY_REFUSES),
    ("refused", REFUSED),
    ("contact DNS servers", NO_NAME_SERVER),
    ("contacting DNS servers", NO_NAME_SERVER),
    ("emporary failure in name resolution", NO_NAME_SERVER),
    ("resol", UNKNOWN_NAME),
    ("ame or service not known", UNKNOWN_NAME),
    ("No address associated", UNKNOWN_NAME),
    ("unreachable", NO_ROUTE),
    ("No route to host", NO_ROUTE),
    ("is down", NO_ROUTE),
    ("timed out before receiving SETTINGS", SILENT),
    ("handshaker shutdown", NO_ANSWER),
    ("timed out", NO_ANSWER),
    ("Failed parsing HTTP/2", NOT_GRPC),
    ("SETTINGS", NOT_GRPC),
    ("http2 header with status", NOT_GRPC),
    ("andshake", NO_TLS_CONNECTION),
    ("keepalive", WENT_SILENT),
    ("ping timeout", WENT_SILENT),
    ("onnection reset", RESET),
    ("aborted", RESET),
    ("closed", CLOSED),
    ("Stream removed", CLOSED),
    ("roken pipe", CLOSED),
    ("GOAWAY", CLOSED),
    ("RST_STREAM", CLOSED),
)
_OF_STATUS = {
    grpc.StatusCode.UNAVAILABLE: LOST,
    grpc.StatusCode.DEADLINE_EXCEEDED: NO_ANSWER,
    grpc.StatusCode.UNIMPLEMENTED: OTHER_SERVICE,
    grpc.StatusCode.CANCELLED: ENDED,
    grpc.StatusCode.ABORTED: ENDED,
}


def call_reason(status: grpc.StatusCode, words: str, *, has_answered: bool = False) -> str:
    """What gRPC's status and details mean that no moa server has sent.

    Args:
        has_answered: a moa server has, at this address: what closes connections there now may be a tunnel, or a proxy.
    """
    if status in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED):
        return _OF_STATUS[status]
    if (why := _reason_in(words)) is None:
        return _OF_STATUS.get(status, FAILED)
    if why in (RESET, CLOSED) and _ATTEMPT in words:
        return MAY_HAVE_ENDED if has_answered else CLOSES
    return why


def system_reason(error: OSError) -> str:
    """What the system's error in making a connection means."""
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    # asyncio has words of its own beside a number; for several addresses, the numbers are in its words only
    numbers = [error.errno] if error.errno is not None else map(int, re.findall(r"Errno (\d+)", str(error)))
    words = " ".join([str(error), *(os.strerror(number) for number in numbers if number > 0)])
    return _reason_in(words) or LOST


def _reason_in(words: str) -> str | None:
    return next((why for sign, why in _SIGNS if sign in words), None)
