"""Why a server cannot be talked to, in one sentence: its own words, gRPC's reason, or what TLS alone can tell."""

from __future__ import annotations

import asyncio
import ssl
import time
from datetime import UTC, datetime
from typing import Any

import grpc
from moa_shared.errors import DeniedError, MoaError, OverloadedError, UnavailableError
from moa_shared.programs.addresses import host_of
from moa_shared.protocol import call_reasons
from moa_shared.protocol.call_reasons import NOT_CONNECTED, TlsReason, call_reason, tls_reason
from moa_shared.protocol.handshake_checks import CODE_KEY, error_from_rpc

from moa_client.link.security import Security, open_connection

END = "-----END CERTIFICATE-----"
SEQUENCE, UTC_TIME, VERSION = 0x30, 0x17, 0xA0  # tags of DER (X.690)


def certificate_end(pem: str) -> float | None:
    """Seconds since 1970 at which the first certificate of a text ends; None: none was found."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE-----") : pem.index(END) + len(END)])
        _, certificate, _ = _element(der)
        _, rest, _ = _element(certificate)  # what is signed (RFC 5280, 4.1)
        fields: list[tuple[int, bytes]] = []
        while rest and len(fields) < 6:
            tag, content, rest = _element(rest)
            fields.append((tag, content))
        validity = fields[4 if fields[0][0] == VERSION else 3][1]
        _, _, after = _element(validity)
        tag, text, _ = _element(after)
        return (
            datetime.strptime(text.decode(), "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ")
            .replace(tzinfo=UTC)
            .timestamp()
        )
    except (ValueError, IndexError):
        return None


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    if start + length > len(data):
        raise ValueError("an element is cut off")
    return data[0], data[start : start + length], data[start + length :]


FIRST_BYTES_SECONDS = 1.0  # a server of HTTP/2 speaks first, within a round trip
# What a server says that refuses this device's certificate, or the lack of one.
REFUSALS = ("ALERT_CERTIFICATE", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_EX")


class HandshakeError(Exception):
    """A handshake that went wrong; `reason` says why."""

    def __init__(self, reason: TlsReason) -> None:
        super().__init__(reason.why)
        self.reason = reason


async def shake_hands(address: str, security: Security) -> dict[str, Any]:
    """The server's certificate, as Python's ssl shows it, after one handshake; the caller sets how long to wait.

    Raises:
        HandshakeError: why it went wrong.
        ConfigError: a file cannot be used.
        OSError: there is no connection.
    """
    context = security.context()
    try:
        reader, writer = await open_connection(address, security, context)
    except ssl.SSLCertVerificationError as error:
        reason = tls_reason(error.verify_message) or TlsReason(
            f"its certificate is refused ({error.verify_message.rstrip('.')})", "Have it renewed."
        )
        raise HandshakeError(reason) from None
    except (ssl.SSLEOFError, ConnectionResetError, ConnectionAbortedError):
        raise HandshakeError(call_reasons.CLOSES_BEFORE_TLS) from None
    except ssl.SSLError as error:
        raise HandshakeError(_refusal(security) if _is_refusal(error) else call_reasons.NO_TLS) from None
    try:
        await _wait_for_first_bytes(reader, security)
        return writer.get_extra_info("peercert") or {}
    finally:
        writer.transport.abort()


async def speaks_tls(address: str, security: Security) -> bool:
    """Whether something at this address answers as a server of TLS does; the caller sets how long to wait."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only whether it is TLS; nothing is sent
    try:
        _, writer = await open_connection(address, security, context)
    except OSError as error:
        return isinstance(error, ssl.SSLError) and _is_refusal(error)
    writer.transport.abort()
    return True


async def find_reason(address: str, security: Security, seconds: float) -> TlsReason | None:
    """Why a connection through which no call came was of no use; None: TLS is not why."""
    try:
        async with asyncio.timeout(seconds):
            if not security.tls:
                return call_reasons.ONLY_TLS if await speaks_tls(address, security) else None
            await shake_hands(address, security)
    except HandshakeError as error:
        return error.reason
    except OSError:  # a timeout too
        return None
    return None


async def _wait_for_first_bytes(reader: asyncio.StreamReader, security: Security) -> None:
    """In TLS 1.3 this end is done before the server has looked at this device's certificate."""
    try:
        async with asyncio.timeout(FIRST_BYTES_SECONDS):
            is_closed = await reader.read(1) == b""
    except TimeoutError:
        return
    except (ssl.SSLError, ConnectionError):
        is_closed = True
    if is_closed:
        raise HandshakeError(_refusal(security))


def _is_refusal(error: ssl.SSLError) -> bool:
    return any(each in str(error.reason) for each in REFUSALS)


def _refusal(security: Security) -> TlsReason:
    if security.certificate is None:
        return call_reasons.WANTS_CERTIFICATE
    end = certificate_end(security.certificate.read_text("ascii", "replace"))
    return call_reasons.OWN_EXPIRED if end is not None and end < time.time() else call_reasons.OWN_REFUSED


PROBE_SECONDS = 2.0  # to find out why a connection was of no use


async def why_unreachable(
    error: grpc.RpcError, address: str, label: str, security: Security, seconds: float, *, has_answered: bool
) -> MoaError:
    """Why a call has brought nothing.

    `seconds`: how long the call could take; `has_answered`: whether an earlier one was answered.
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
    return f"Ask who runs it; or, if the server is reached without it, put {host_of(address)} into no_proxy."


def _metadata(error: grpc.RpcError) -> dict[str, str | bytes]:
    return dict(error.trailing_metadata() or ())  # type: ignore[arg-type]


def _unusable(label: str, reason: TlsReason) -> UnavailableError:
    """All of it in the message: a chat that starts without its server shows no hints."""
    return UnavailableError(f"The server at {label} cannot be used: {reason.why}. {reason.hint}", hint="")
