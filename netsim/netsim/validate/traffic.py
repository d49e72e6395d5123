"""Traffic for the checks: request and answer, bulk, timed packets. Each returns what the receiving end saw."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

CHUNK = bytes(256 * 1024)
_STAMP = struct.Struct("!d")


def request_latencies_ms(
    client: socket.socket, server: socket.socket, seconds: float, nbytes: int = 100
) -> list[float]:
    """Ping-pong for a time: latency of each request."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(4096):
                server.sendall(data)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    latencies = []
    end = time.monotonic() + seconds
    while (start := time.monotonic()) < end:
        client.sendall(bytes(nbytes))
        got = 0
        while got < nbytes:
            got += len(client.recv(nbytes - got))
        latencies.append((time.monotonic() - start) * 1e3)
    client.shutdown(socket.SHUT_WR)
    thread.join()
    return latencies


def bulk_mbps(client: socket.socket, server: socket.socket, seconds: float, warm_up_s: float = 1.0) -> float:
    """Payload rate at the server, Mbit/s, without the first `warm_up_s`."""
    end = time.monotonic() + warm_up_s + seconds

    def send() -> None:
        client.settimeout(0.2)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                client.send(CHUNK)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    buffer = bytearray(1024 * 1024)
    received, start = 0, time.monotonic() + warm_up_s
    while (now := time.monotonic()) < end:
        nbytes = server.recv_into(buffer)
        received += nbytes if now >= start else 0
    elapsed = now - start
    thread.join()
    return received * 8e-6 / elapsed


def stamped_delays_ms(client: socket.socket, server: socket.socket, count: int, spacing_s: float) -> list[float]:
    """Time that small messages take from client to server, sent `spacing_s` apart; over TCP or UDP."""
    delays: list[float] = []

    def receive() -> None:
        with contextlib.suppress(TimeoutError):
            while len(delays) < count:
                stamp = server.recv(_STAMP.size)
                if len(stamp) == _STAMP.size:
                    delays.append((time.monotonic() - _STAMP.unpack(stamp)[0]) * 1e3)

    thread = threading.Thread(target=receive)
    thread.start()
    due = time.monotonic()
    for _ in range(count):
        due += spacing_s
        time.sleep(max(0.0, due - time.monotonic()))
        client.send(_STAMP.pack(time.monotonic()))
    thread.join()
    return delays


def flood(client: socket.socket, server: socket.socket, seconds: float, mbps: float) -> list[tuple[float, int]]:
    """Sends datagrams of 1,500 bytes on the wire at a rate; (arrival, bytes on the wire) of those that came."""
    arrivals: list[tuple[float, int]] = []
    going = True

    def receive() -> None:
        while going:
            with contextlib.suppress(TimeoutError):
                nbytes = len(server.recv(2048))
                arrivals.append((time.monotonic(), nbytes + 28))

    thread = threading.Thread(target=receive)
    thread.start()
    start = due = time.monotonic()
    packet = bytes(1472)
    while due - start < seconds:
        # Ten packets at a time: fewer wake-ups, and still far less than the queue holds.
        for _ in range(10):
            client.send(packet)
        due += 10 * 1500 * 8e-6 / mbps
        time.sleep(max(0.0, due - time.monotonic()))
    time.sleep(0.2)
    going = False
    thread.join()
    return arrivals


def ticks(client: socket.socket, server: socket.socket, seconds: float, spacing_s: float = 0.001) -> list[float]:
    """Sends a stamped datagram every `spacing_s`; times at which those that arrived were sent."""
    sent: list[float] = []
    going = True

    def receive() -> None:
        while going:
            with contextlib.suppress(TimeoutError):
                sent.append(_STAMP.unpack(server.recv(64)[: _STAMP.size])[0])

    thread = threading.Thread(target=receive)
    thread.start()
    start = due = time.monotonic()
    while due - start < seconds:
        client.send(_STAMP.pack(time.monotonic()))
        due += spacing_s
        time.sleep(max(0.0, due - time.monotonic()))
    time.sleep(0.2)
    going = False
    thread.join()
    return sent
