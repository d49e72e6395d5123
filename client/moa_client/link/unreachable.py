"""Why a server cannot be talked to, in one sentence: its own words, gRPC's reason, or what TLS alone can tell."""

from __future__ import annotations

import grpc
from moa_shared.errors import DeniedError, MoaError, OverloadedError, UnavailableError
from moa_shared.programs.addresses import host_of
from moa_shared.protocol.call_reasons import NOT_CONNECTED, call_reason
from moa_shared.protocol.handshake_checks import CODE_KEY, error_from_rpc
from moa_shared.protocol.tls_reasons import TlsReason, tls_reason

from moa_client.link.security import Security
from moa_client.link.tls.handshake import find_reason

PROBE_SECONDS = 2.0  # to find out why a connection was of no use


async def why_unreachable(
    error: grpc.RpcError, address: str, label: str, security: Security, seconds: float, *, has_answered: bool
) -> MoaError:
    """Why a call has brought nothing.

    Args:
        label: the server, for people.
        seconds: how long the call could take.
        has_answered: whether an earlier one was answered.
    """
    reason = error_from_rpc(error, has_answered=has_answered)
    if CODE_KEY in _metadata(error) or isinstance(reason, DeniedError | OverloadedError):
        return security.advised(reason)  # a moa server's words, or those of what guards it
    status, words = error.code(), error.details() or ""
    why = call_reason(status, words, has_answered=has_answered)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        why = f"nothing answered within {seconds:g} s"
    elif status is grpc.StatusCode.UNAVAILABLE:
        is_known = why in NOT_CONNECTED or (has_answered and security.certificate is None)  # and then not looked into
        if (found := tls_reason(words)) is None and not is_known:
            found = await find_reason(address, security, min(seconds, PROBE_SECONDS))
        if found is not None:
            return _unusable(label, found)
    if (proxy := security.proxy(address)) is not None:
        return UnavailableError(f"The {proxy}, leads to no moa server at {label}: {why}.", hint=proxy_hint(address))
    return UnavailableError(f"There is no moa server at {label}: {why}.")


def call_error(error: grpc.RpcError, address: str, security: Security, *, has_answered: bool) -> MoaError:
    """Why a call has failed, and what this device's user can do."""
    reason = security.advised(error_from_rpc(error, has_answered=has_answered))
    proxy = security.proxy(address)
    if proxy is None or CODE_KEY in _metadata(error) or not isinstance(reason, UnavailableError):
        return reason
    return UnavailableError(f"{reason.message} It was tried by way of the {proxy}.", hint=proxy_hint(address))


def proxy_hint(address: str) -> str:
    """What to do about the proxy on the way to an address."""
    return f"Ask who runs it; or, if the server is reached without it, put {host_of(address)} into no_proxy."


def _metadata(error: grpc.RpcError) -> dict[str, str | bytes]:
    return dict(error.trailing_metadata() or ())  # type: ignore[arg-type]


def _unusable(label: str, reason: TlsReason) -> UnavailableError:
    """All of it in the message: a chat that starts without its server shows no hints."""
    return UnavailableError(f"The server at {label} cannot be used: {reason.why}. {reason.hint}", hint="")
