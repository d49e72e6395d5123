"""The near end of a measurement: round trips on an idle link, then rates under load.

Against `netsim serve` it measures round trips, both rates and retransmissions; against any other server only the time
that connecting takes. Rates are counted where bytes arrive.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from netsim.errors import MeasurementError
from netsim.measure.far_end import CHUNK, GREETING
from netsim.run.address import Address, resolve

CONNECT_TIMEOUT_S = 10.0
ECHO_BYTES = 32
PING_EVERY_S = 0.05  # the correlation time of our delay model: closer ones add little
GREETING_TIMEOUT_S = 2.0
# struct tcp_info of linux/tcp.h: tcpi_total_retrans, and tcpi_segs_out after seven u64 and two u32.
TOTAL_RETRANS_OFFSET, SEGS_OUT_OFFSET = 100, 136


@dataclass(slots=True)
class Measurement:
    """What a measurement saw: pairs of (seconds since the start, value); rates in Mbit/s of payload."""

    round_trips_ms: list[tuple[float, float]] = field(default_factory=list)
    down_mbps: list[tuple[float, float]] = field(default_factory=list)
    up_mbps: list[tuple[float, float]] = field(default_factory=list)
    loss: float | None = None  # share of segments sent again, up
    far_end: bool = True  # whether the server was `netsim serve`


def measure(server: Address, idle_s: float, load_s: float) -> Measurement:
    """Round trips for `idle_s`, then rates for `load_s` (down and up at once). Raises MeasurementError."""
    seen = Measurement()
    start = time.monotonic()
    try:
        seen.far_end = _greets(server)
        if seen.far_end:
            _ping_echo(server, start, idle_s, seen)
            if load_s > 0.0:
                _load(server, start, load_s, seen)
        else:
            _ping_connects(server, start, idle_s, seen)
    except OSError as error:
        raise MeasurementError(f"The connection to {server} was lost while measuring: {error}.") from error
    if not seen.round_trips_ms:
        raise MeasurementError(
            f"No round trip to {server} was completed in {idle_s:g} s.", hint="Give it more --seconds."
        )
    return seen


def _connect(server: Address) -> socket.socket:
    family, numeric = resolve(server, "server")
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(CONNECT_TIMEOUT_S)
    try:
        sock.connect(tuple(numeric))
    except OSError as error:
        sock.close()
        raise MeasurementError(
            f"{server} cannot be reached: {error.strerror or error}.",
            hint="Start `netsim serve` there, or any TCP server.",
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _ask(server: Address, what: bytes) -> socket.socket:
    sock = _connect(server)
    greeting = b""
    while len(greeting) < len(GREETING):
        part = sock.recv(len(GREETING) - len(greeting))
        if not part:
            raise MeasurementError(f"{server} closed the connection.")
        greeting += part
    sock.sendall(what + b"\n")
    return sock


def _greets(server: Address) -> bool:
    with _connect(server) as sock:
        sock.settimeout(GREETING_TIMEOUT_S)
        with contextlib.suppress(OSError):
            return sock.recv(len(GREETING)) == GREETING
    return False


def _ping_echo(server: Address, start: float, seconds: float, seen: Measurement) -> None:
    with _ask(server, b"ECHO") as sock:
        end = time.monotonic() + seconds
        while (t := time.monotonic()) < end:
            sock.sendall(bytes(ECHO_BYTES))
            got = 0
            while got < ECHO_BYTES:
                part = sock.recv(ECHO_BYTES - got)
                if not part:
                    raise MeasurementError(f"{server} closed the connection.")
                got += len(part)
            now = time.monotonic()
            seen.round_trips_ms.append((t - start, (now - t) * 1e3))
            time.sleep(max(0.0, PING_EVERY_S - (now - t)))


def _ping_connects(server: Address, start: float, seconds: float, seen: Measurement) -> None:
    end = time.monotonic() + seconds
    while (t := time.monotonic()) < end:
        with _connect(server):
            now = time.monotonic()
        seen.round_trips_ms.append((t - start, (now - t) * 1e3))
        time.sleep(max(0.0, PING_EVERY_S - (now - t)))


def _load(server: Address, start: float, seconds: float, seen: Measurement) -> None:
    """Saturates both directions; counts each second's arrivals."""
    end = time.monotonic() + seconds
    with _ask(server, b"SOURCE") as down, _ask(server, b"SINK") as up:
        with ThreadPoolExecutor() as threads:
            jobs = [
                threads.submit(_receive, down, start, end, seen),
                threads.submit(_send, up, end),
                threads.submit(_read_reports, up, start, end, seen),
            ]
        for job in jobs:
            job.result()  # raises what the thread raised
        info = up.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) >= SEGS_OUT_OFFSET + 4:
            sent_again = struct.unpack_from("=I", info, TOTAL_RETRANS_OFFSET)[0]
            sent = struct.unpack_from("=I", info, SEGS_OUT_OFFSET)[0]
            seen.loss = sent_again / sent if sent else None


def _receive(sock: socket.socket, start: float, end: float, seen: Measurement) -> None:
    received, mark = 0, time.monotonic()
    sock.settimeout(0.1)
    while mark < end:
        with contextlib.suppress(TimeoutError):
            received += len(sock.recv(256 * 1024))
        now = time.monotonic()
        if now - mark >= 1.0:
            seen.down_mbps.append((mark - start, received * 8e-6 / (now - mark)))
            received, mark = 0, now


def _send(sock: socket.socket, end: float) -> None:
    sock.settimeout(0.1)
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            sock.send(CHUNK)


def _read_reports(sock: socket.socket, start: float, end: float, seen: Measurement) -> None:
    pending, before, mark = b"", 0, time.monotonic()
    while mark < end:
        with contextlib.suppress(TimeoutError):
            pending += sock.recv(4096)
        now = time.monotonic()
        if now - mark >= 1.0:
            whole = len(pending) // 8 * 8
            total = struct.unpack_from("!Q", pending, whole - 8)[0] if whole else before
            pending = pending[whole:]
            seen.up_mbps.append((mark - start, (total - before) * 8e-6 / (now - mark)))
            before, mark = total, now
