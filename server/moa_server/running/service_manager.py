"""Tells the service manager how the server is: systemd's sd_notify, datagrams to the socket that NOTIFY_SOCKET names.

Without the variable nothing is sent. Invariant: a manager that cannot be reached never disturbs the server.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """Tells the service manager how the server is. No-op without NOTIFY_SOCKET."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get(VARIABLE, "")
        self._address = "\0" + name[1:] if name.startswith("@") else name

    def ready(self, status: str) -> None:
        """The server serves.

        Args:
            status: one line for `systemctl status`.
        """
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """The event loop turns and no forward hangs. The watchdog ends a server that does not say so for long."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The server drains, and then ends."""
        self._send("STOPPING=1\nSTATUS=draining")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a manager that does not read must not hold up the event loop
            sender.sendto(text.encode(), self._address)
