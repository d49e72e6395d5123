"""The steps below moa's protocol: the name, the connection, TLS. Each wait has a deadline."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

from moa_shared.errors import UnavailableError
from moa_shared.programs.addresses import host_of, is_loopback
from moa_shared.programs.checks import Check
from moa_shared.protocol.call_reasons import system_reason
from moa_shared.protocol.tls_reasons import OWN_EXPIRED

from moa_client.doctor.judgements import SOON_DAYS, judge_certificate
from moa_client.link.security import Security
from moa_client.link.server_name import is_name
from moa_client.link.tls.certificate_end import certificate_end
from moa_client.link.tls.handshake import HandshakeError, shake_hands
from moa_client.link.tunnel import TunnelError, open_connection
from moa_client.link.unreachable import proxy_hint


async def check_name(address: str, security: Security) -> Check:
    """Whether the host's name is known."""
    host, port = host_of(address), int(address.rpartition(":")[2])
    if is_name(address) and (proxy := security.proxy(address)) is not None:
        return Check("name", "ok", f"{host} is looked up by the {proxy}")
    began = time.monotonic()
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(
            f"{host} is not known: {system_reason(error)}.",
            hint="Check the name, and that this device is on a network.",
        ) from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if addresses == [host]:
        return Check("name", "ok", f"{host} is an address")
    return Check("name", "ok", f"{host} is {', '.join(addresses)} ({1e3 * (time.monotonic() - began):.0f} ms)")


async def check_connection(address: str, security: Security) -> Check:
    """Whether something listens there."""
    began, proxy = time.monotonic(), security.proxy(address)
    try:
        _, writer = await open_connection(address, security)
    except TunnelError as error:
        raise UnavailableError(f"The {error}.", hint=proxy_hint(address)) from None
    except OSError as error:
        if proxy is not None:
            raise UnavailableError(
                f"The {proxy}, takes no connections: {system_reason(error)}.", hint=proxy_hint(address)
            ) from None
        raise UnavailableError(
            f"Nothing at {address} takes connections: {system_reason(error)}.",
            hint="Check the port, that moa-server runs there and listens beyond its machine (--host), and firewalls.",
        ) from None
    took_ms = 1e3 * (time.monotonic() - began)
    await _close(writer)
    way = f", by way of the {proxy}" if proxy is not None else ""
    return Check("connection", "ok", f"open after {took_ms:.1f} ms{way}")


async def check_tls(address: str, security: Security) -> Check:
    """Whether the server proves who it is."""
    if not security.tls:
        if is_loopback(host_of(address)):
            return Check("TLS", "ok", "not used: nothing leaves this machine")
        return Check(
            "TLS", "warn", "not used: others on the way can read the conversation", "Use TLS where the server has it."
        )
    try:
        found = await shake_hands(address, security)
    except HandshakeError as error:
        raise UnavailableError(f"The server cannot be used: {error.reason.why}.", hint=error.reason.hint) from None
    if not found.speaks_http2:
        return Check("TLS", "warn", "the server does not offer HTTP/2", "A proxy before moa-server must pass gRPC on.")
    own_end, now, certificate = _own_end(security), time.time(), found.certificate
    if own_end is not None and own_end < now + SOON_DAYS * 86_400:
        days = (own_end - now) / 86_400
        return Check("TLS", "warn", f"this device's certificate ends in {days:.0f} days", OWN_EXPIRED.hint)
    owner = next((value for part in certificate.get("subject", ()) for _, value in part), "the server")
    return judge_certificate(owner, ssl.cert_time_to_seconds(certificate["notAfter"]), now)


def _own_end(security: Security) -> float | None:
    if security.certificate is None:
        return None
    return certificate_end(security.certificate.read_text("ascii", "replace"))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return  # it is closed all the same
