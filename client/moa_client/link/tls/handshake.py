"""A TLS handshake by itself, which tells what gRPC does not: why a connection was of no use."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Any

from moa_shared.protocol.tls_reasons import (
    CLOSED,
    NO_TLS,
    ONLY_TLS,
    OWN_EXPIRED,
    OWN_REFUSED,
    WANTS_CERTIFICATE,
    TlsReason,
    tls_reason,
)

from moa_client.link.security import Security
from moa_client.link.tls.certificate_end import certificate_end
from moa_client.link.tunnel import open_connection

FIRST_BYTES_SECONDS = 1.0  # a server of HTTP/2 speaks first, within a round trip
# What a server says that refuses this device's certificate, or the lack of one.
REFUSALS = ("ALERT_CERTIFICATE", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_EX")


@dataclass(frozen=True, slots=True)
class Handshake:
    """A handshake that went well.

    Args:
        certificate: of the server, as Python's ssl shows it.
        speaks_http2: by its own words.
    """

    certificate: dict[str, Any]
    speaks_http2: bool


class HandshakeError(Exception):
    """A handshake that went wrong; `reason` says why."""

    def __init__(self, reason: TlsReason) -> None:
        super().__init__(reason.why)
        self.reason = reason


async def shake_hands(address: str, security: Security) -> Handshake:
    """One handshake; the caller sets how long to wait.

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
        raise HandshakeError(CLOSED) from None
    except ssl.SSLError as error:
        raise HandshakeError(_refusal(security) if _is_refusal(error) else NO_TLS) from None
    try:
        await _wait_for_first_bytes(reader, security)
        tls = writer.get_extra_info("ssl_object")
        return Handshake(writer.get_extra_info("peercert") or {}, tls.selected_alpn_protocol() == "h2")
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
                return ONLY_TLS if await speaks_tls(address, security) else None
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
    """Why a server closes the connection at this point."""
    if security.certificate is None:
        return WANTS_CERTIFICATE
    end = certificate_end(security.certificate.read_text("ascii", "replace"))
    return OWN_EXPIRED if end is not None and end < time.time() else OWN_REFUSED
