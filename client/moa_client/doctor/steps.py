"""The steps about a server: its name, the connection, TLS, the round trip, how much the link carries; what they mean.

Each wait has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.programs.addresses import host_of, is_loopback
from moa_shared.programs.machine import Check, si_bytes
from moa_shared.protocol.call_reasons import OWN_EXPIRED, system_reason

from moa_client.device.drafter_catalog import DrafterCandidate, ServerPace, speedup
from moa_client.device.fetching import WINDOW_BYTES, fetch_manifest
from moa_client.link.security import Security, TunnelError, open_connection
from moa_client.link.server import Server
from moa_client.link.server_name import is_name
from moa_client.link.unreachable import HandshakeError, certificate_end, proxy_hint, shake_hands

SOON_DAYS = 14  # a certificate that ends within so many should be renewed now
FAR_MS = 150.0  # a round trip that a reader notices at each correction
FULL = 0.9  # beyond it, a server may refuse
DOWN_BYTES = 550.0  # a token, with memory for both planes in int4 (docs/architecture.md)
UP_BYTES = 120.0  # a token, with drafts as trees
NOTICEABLE = 1.05  # times plain streaming


def judge_certificate(owner: str, ends_at: float, now: float) -> Check:
    """A certificate that was accepted.

    Args:
        ends_at, now: seconds since 1970.
    """
    days = (ends_at - now) / 86_400
    message = f"the certificate of {owner} is valid for {days:.0f} more day{'' if round(days) == 1 else 's'}"
    if days < SOON_DAYS:
        return Check("TLS", "warn", message, "Whoever runs the server should renew it.")
    return Check("TLS", "ok", message)


def judge_round_trip(took_ms: float, samples: int, load: float) -> Check:
    """The median of some calls, and how much of the server is taken."""
    message = f"{took_ms:.1f} ms, the median of {samples}; {100 * load:.0f} % of the server is taken"
    if load >= FULL:
        return Check("round trip", "warn", message, "It may refuse: ask later, or add another server.")
    if took_ms > FAR_MS:
        return Check("round trip", "warn", message, "Text comes as fast, but begins later: use a nearer server.")
    return Check("round trip", "ok", message)


def judge_goodput(name: str, nbytes: int, seconds: float, step_ms: float) -> Check:
    """Bytes carried in a time, against what the server's text takes. `step_ms`: of a plain step; 0: not known."""
    rate = nbytes / max(seconds, 1e-6)
    each = DOWN_BYTES if name == "download" else UP_BYTES
    message = f"{si_bytes(rate)}/s ({si_bytes(nbytes)} in {seconds:.2g} s)"
    if not step_ms:
        return Check(name, "ok", message)
    needed = each * 1e3 / step_ms
    message += f"; text with drafts takes up to {si_bytes(needed)}/s"
    if rate >= needed:
        return Check(name, "ok", message)
    less = "The memory sent adapts, and fewer drafts are made" if name == "download" else "Fewer drafts are sent"
    return Check(name, "warn", message, f"{less}: the text is the same, and comes more slowly.")


def judge_speed(candidates: Sequence[DrafterCandidate], step_ms: float) -> Check:
    """How long a level of a draft takes here, against a step of the server."""
    levels = ", ".join(f"{each.level_ms:.1f} ms ({each.name})" for each in candidates)
    message = f"a level of a draft takes {levels}"
    if not step_ms:
        return Check("speed here", "ok", f"{message}; the server does not say how long a step takes")
    message += f"; a plain step of the server {step_ms:.1f} ms"
    if min(each.level_ms for each in candidates) < step_ms:
        return Check("speed here", "ok", message)
    return Check("speed here", "warn", message, "Drafts from here come too late: give the drafter more --threads.")


def judge_expectation(candidates: Sequence[DrafterCandidate], server: ServerPace) -> Check:
    if not server.step_ms:
        return Check("expect", "ok", "the server does not say how fast it is")
    plain = f"{1e3 / server.step_ms:.0f} tokens/s"
    best = max(candidates, key=lambda each: speedup(each, server), default=None)
    times = speedup(best, server) if best is not None else 1.0
    if best is None or times < NOTICEABLE:
        return Check(
            "expect",
            "ok",
            f"plain streaming, about {plain}; drafts from here add little, and the server drafts while it has time",
        )
    return Check(
        "expect", "ok", f"about {times:.1f} times plain streaming ({plain}) with drafts from here ({best.name})"
    )


async def check_name(address: str, security: Security) -> Check:
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
    writer.close()
    with suppress(OSError):  # it is closed all the same
        await writer.wait_closed()
    way = f", by way of the {proxy}" if proxy is not None else ""
    return Check("connection", "ok", f"open after {took_ms:.1f} ms{way}")


async def check_tls(address: str, security: Security) -> Check:
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
    now, certificate, own = time.time(), found.certificate, security.certificate
    own_end = certificate_end(own.read_text("ascii", "replace")) if own is not None else None
    if own_end is not None and own_end < now + SOON_DAYS * 86_400:
        days = (own_end - now) / 86_400
        return Check("TLS", "warn", f"this device's certificate ends in {days:.0f} days", OWN_EXPIRED.hint)
    owner = next((value for part in certificate.get("subject", ()) for _, value in part), "the server")
    return judge_certificate(owner, ssl.cert_time_to_seconds(certificate["notAfter"]), now)


ROUND_TRIPS = 7
GOODPUT_BYTES = 400_000  # each way: beyond TCP's slow start at most round trips, and 3 s at 1 Mbit/s
GOODPUT_SECONDS = 8.0  # then what has arrived counts
UNKNOWN_FIELD = 0x7A  # number 15, with a length: an end that does not know it passes over it
FRAME_OVERHEAD_BYTES = 64
MOST_CALLS = 64  # of a server with short frames: its allowance for one connection is no more than a burst


async def measure_round_trip(server: Server) -> tuple[float, Check]:
    """The median of some calls over an open connection, in ms."""
    took, load = [], 0.0
    for _ in range(ROUND_TRIPS):
        began = time.monotonic()
        load = (await server.describe()).load
        took.append(1e3 * (time.monotonic() - began))
    return median(took), judge_round_trip(median(took), len(took), load)


async def measure_download(server: Server, step_ms: float) -> tuple[pb.PartManifest | None, Check]:
    """The list of what can be fetched, and the time of a range of its longest file."""
    wide = server.widened(WINDOW_BYTES)
    try:
        async with asyncio.timeout(GOODPUT_SECONDS):
            manifest = await fetch_manifest(wide)
    except (MoaError, TimeoutError) as error:
        await wide.close()
        why = error.message if isinstance(error, MoaError) else "the list of files did not come in time"
        return None, Check("download", "skip", f"not measured: {why}")
    longest = max(manifest.files, key=lambda each: each.size)
    request = pb.FetchDrafterRequest(
        name=longest.name, offset=max(0, longest.size - GOODPUT_BYTES), sha256=longest.sha256
    )
    came, began = 0, time.monotonic()
    try:
        async with asyncio.timeout(GOODPUT_SECONDS):
            async for message in wide.fetch(request):
                came += len(message.chunk.data)
    except TimeoutError:
        pass
    except MoaError as error:
        return manifest, Check("download", "warn", f"broke off: {error.message}", "Check the link; a download resumes.")
    finally:
        await wide.close()
    return manifest, judge_goodput("download", came, time.monotonic() - began, step_ms)


async def measure_upload(server: Server, frame_bytes: int, rtt_ms: float, step_ms: float) -> Check:
    """The time of calls that carry more than they need, all at once.

    `frame_bytes`: the longest message that the server takes.
    """
    each = min(frame_bytes - FRAME_OVERHEAD_BYTES, GOODPUT_BYTES)
    if each <= 0:
        return Check("upload", "skip", "not measured: the server does not say how long a message may be")
    calls = min(MOST_CALLS, -(-GOODPUT_BYTES // each))
    padding = _padding(each)
    began = time.monotonic()
    try:
        async with asyncio.timeout(GOODPUT_SECONDS):
            await asyncio.gather(*(server.describe(GOODPUT_SECONDS, padding) for _ in range(calls)))
    except TimeoutError:
        rate = calls * each / GOODPUT_SECONDS
        return Check("upload", "warn", f"less than {rate / 1e3:.0f} kB/s", "Drafts will often come too late.")
    except MoaError as error:
        return Check("upload", "skip", f"not measured: {error.message}")
    seconds = max(1e-3, time.monotonic() - began - rtt_ms / 1e3)
    return judge_goodput("upload", calls * each, seconds, step_ms)


def _padding(nbytes: int) -> bytes:
    """A field that no version knows, of about so many bytes, as part of a message."""
    length, digits = nbytes, bytearray()
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return bytes([UNKNOWN_FIELD, *digits]) + bytes(nbytes)
