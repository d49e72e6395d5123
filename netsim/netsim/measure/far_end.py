"""The far end of a measurement. A client's first line says what it wants: ECHO, SINK or SOURCE.

SINK answers with the bytes received so far, eight bytes every 100 ms, so that the rate is measured where it arrives.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

GREETING = b"netsim-measure 1\n"
REPORT_S = 0.1
CHUNK = bytes(64 * 1024)
IDLE_TIMEOUT_S = 30.0


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
        peer.settimeout(IDLE_TIMEOUT_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            peer.sendall(GREETING)
            match _line(peer):
                case b"ECHO":
                    while data := peer.recv(4096):
                        peer.sendall(data)
                case b"SINK":
                    _sink(peer)
                case b"SOURCE":
                    while True:
                        peer.sendall(CHUNK)
        except OSError:
            return  # the client has what it wants


def _sink(peer: socket.socket) -> None:
    received, due = 0, time.monotonic() + REPORT_S
    peer.settimeout(REPORT_S)
    quiet = 0.0
    while quiet < IDLE_TIMEOUT_S:
        try:
            data = peer.recv(256 * 1024)
            if not data:
                return
            received, quiet = received + len(data), 0.0
        except TimeoutError:
            quiet += REPORT_S
        if time.monotonic() >= due:
            peer.sendall(struct.pack("!Q", received))
            due = time.monotonic() + REPORT_S


def _line(peer: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < 64:
        byte = peer.recv(1)
        if not byte:
            return b""
        line += byte
    return line.strip()
