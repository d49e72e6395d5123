"""Measuring a real link: a far end that echoes, sinks and sends, a near end that makes a profile or trace of it.

A client's first line says what it wants of the far end: ECHO, SINK or SOURCE. SINK answers with the bytes received so
far, at most every 100 ms, so that the rate is measured where it arrives.
"""

import contextlib
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from netsim.core.stream import HEADER, MSS
from netsim.errors import NetsimError
from netsim.run.loop import Address, resolve
from netsim.traces import Row, Trace, from_zero

GREETING = b"netsim-measure 1\n"
CHUNK = bytes(64 * 1024)


def serve(listener: socket.socket) -> None:
    """Serves until the listening socket is shut down."""
    listener.setblocking(True)
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve_one, args=(peer,), daemon=True).start()


def _serve_one(peer: socket.socket) -> None:
    with peer:
        peer.settimeout(30.0)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            peer.sendall(GREETING)
            match peer.makefile("rb", buffering=0).readline(64).strip():
                case b"ECHO":
                    while data := peer.recv(4096):
                        peer.sendall(data)
                case b"SINK":
                    received, due = 0, 0.0
                    while data := peer.recv(256 * 1024):
                        received += len(data)
                        if time.monotonic() >= due:
                            peer.sendall(struct.pack("!Q", received))
                            due = time.monotonic() + 0.1
                case b"SOURCE":
                    while True:
                        peer.sendall(CHUNK)
        except OSError:
            return  # the client has what it wants


ECHO_BYTES = 32
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
    """Round trips for `idle_s`, then rates for `load_s` (down and up at once). Raises NetsimError."""
    seen = Measurement()
    start = time.monotonic()
    try:
        seen.far_end = _greets(server)
        if seen.far_end:
            with _ask(server, b"ECHO") as sock:

                def echo() -> None:
                    sock.sendall(bytes(ECHO_BYTES))
                    _read(sock, ECHO_BYTES, server)

                _ping(echo, start, idle_s, seen)
            if load_s > 0.0:
                _load(server, start, load_s, seen)
        else:
            _ping(lambda: _connect(server).close(), start, idle_s, seen)
    except OSError as error:
        raise NetsimError(f"The connection to {server} was lost while measuring: {error}.") from error
    if not seen.round_trips_ms:
        raise NetsimError(f"No round trip to {server} was completed in {idle_s:g} s.", hint="Give it more --seconds.")
    return seen


def _connect(server: Address) -> socket.socket:
    family, numeric = resolve(server, "server")
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(10.0)
    try:
        sock.connect(tuple(numeric))
    except OSError as error:
        sock.close()
        raise NetsimError(
            f"{server} cannot be reached: {error.strerror or error}.",
            hint="Start `netsim serve` there, or any TCP server.",
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _ask(server: Address, what: bytes) -> socket.socket:
    sock = _connect(server)
    _read(sock, len(GREETING), server)
    sock.sendall(what + b"\n")
    return sock


def _read(sock: socket.socket, nbytes: int, server: Address) -> None:
    while nbytes:
        part = sock.recv(nbytes)
        if not part:
            raise NetsimError(f"{server} closed the connection.")
        nbytes -= len(part)


def _greets(server: Address) -> bool:
    with _connect(server) as sock:
        sock.settimeout(2.0)
        with contextlib.suppress(OSError):
            return sock.recv(len(GREETING)) == GREETING
    return False


def _ping(once: Callable[[], None], start: float, seconds: float, seen: Measurement) -> None:
    end = time.monotonic() + seconds
    while (t := time.monotonic()) < end:
        once()
        now = time.monotonic()
        seen.round_trips_ms.append((t - start, (now - t) * 1e3))
        time.sleep(max(0.0, 0.05 - (now - t)))  # the correlation time of our delay model: closer ones add little


def _load(server: Address, start: float, seconds: float, seen: Measurement) -> None:
    """Saturates both directions; counts each second's arrivals."""
    end = time.monotonic() + seconds
    received, arrived, reports = 0, 0, b""

    def count(data: bytes) -> int:
        nonlocal received
        received += len(data)
        return received

    def read_reports(data: bytes) -> int:
        nonlocal arrived, reports
        reports += data
        if whole := len(reports) // 8 * 8:
            arrived = struct.unpack_from("!Q", reports, whole - 8)[0]
            reports = reports[whole:]
        return arrived

    with _ask(server, b"SOURCE") as down, _ask(server, b"SINK") as up:
        with ThreadPoolExecutor() as threads:
            jobs = [
                threads.submit(_watch, down, count, start, end, seen.down_mbps),
                threads.submit(_send, up, end),
                threads.submit(_watch, up, read_reports, start, end, seen.up_mbps),
            ]
        for job in jobs:
            job.result()  # raises what the thread raised
        info = up.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) >= SEGS_OUT_OFFSET + 4:
            sent_again = struct.unpack_from("=I", info, TOTAL_RETRANS_OFFSET)[0]
            sent = struct.unpack_from("=I", info, SEGS_OUT_OFFSET)[0]
            seen.loss = sent_again / sent if sent else None


def _send(sock: socket.socket, end: float) -> None:
    sock.settimeout(0.1)
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            sock.send(CHUNK)


def _watch(
    sock: socket.socket, total_of: Callable[[bytes], int], start: float, end: float, rates: list[tuple[float, float]]
) -> None:
    """Notes each second's rate; `total_of` gives the bytes in all that what has come amounts to."""
    total, before, mark = 0, 0, time.monotonic()
    sock.settimeout(0.1)
    while mark < end:
        with contextlib.suppress(TimeoutError):
            total = total_of(sock.recv(256 * 1024))
        now = time.monotonic()
        if now - mark >= 1.0:
            rates.append((mark - start, (total - before) * 8e-6 / (now - mark)))
            before, mark = total, now


WIRE_SHARE = (MSS + HEADER) / MSS  # a rate limit counts headers, what arrives is payload


def to_profile(seen: Measurement, name: str, server: str) -> dict[str, Any]:
    """A profile's document: mean and deviation of the round trip, the rates' means, loss from retransmissions."""
    values = [value for _, value in seen.round_trips_ms]
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "description": f"Recorded to {server}: {len(values)} round trips"
        + (f", {len(seen.down_mbps)} s of load." if seen.down_mbps else ", no load."),
        "basis": "rtt",
        # Each direction gets half of a draw of its own, so the two add up to 1 / sqrt(2) of the deviation given here.
        "delay": {
            "mean_ms": round(fmean(values), 3),
            "deviation_ms": round(pstdev(values) * 2.0**0.5, 3),
            "truncation": "preserve_mean",
        },
    }
    for side, rates in (("down", seen.down_mbps), ("up", seen.up_mbps)):
        mean = fmean(value for _, value in rates) * WIRE_SHARE if rates else 0.0
        if mean > 0.0:
            document[side] = {"rate_mbps": round(mean, 3)}
    if seen.loss:
        document["loss"] = {"model": "bernoulli", "probability": round(seen.loss, 6)}
    return document


def to_trace(seen: Measurement) -> Trace:
    """Rows of a second; a round trip's cell is the mean of those that began in it."""
    cells: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for column, values, scale in (
        ("rtt_ms", seen.round_trips_ms, 1.0),
        ("down_mbps", seen.down_mbps, WIRE_SHARE),
        ("up_mbps", seen.up_mbps, WIRE_SHARE),
    ):
        for t, value in values:
            cells[int(t)][column].append(value * scale)
    rows = [
        Row(float(second), _mean(row["down_mbps"]), _mean(row["up_mbps"]), _mean(row["rtt_ms"]))
        for second, row in sorted(cells.items())
    ]
    return from_zero(rows)


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 3) if values else None
