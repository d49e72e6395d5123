"""The gRPC channel to one server, shared by the streams and calls of all conversations there.

State: the newest channel, and those that were replaced while others used them. It is replaced when it is lost, and
when certificates on this device have changed.
"""

from __future__ import annotations

import logging
from copy import copy

from moa_shared.errors import MoaError

from moa_client.link.security import Security, open_channel
from moa_client.link.transport import Transport

# Keepalive is the backstop for a dead peer; ping_timeout_ms is what bounds it (its own default is 60 s).
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 6_000),
    ("grpc.http2.ping_timeout_ms", 6_000),
    ("grpc.http2.bdp_probe", 0),
    # Else a new channel takes over the connection attempt that the one before is still waiting for.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also bounds a connection attempt: 500 failed at a round trip of 300 ms
    ("grpc.max_reconnect_backoff_ms", 3_000),
]
WINDOW_BYTES = 64 << 10  # of a conversation: more would let memory queue up in the network ahead of verdicts
log = logging.getLogger(__name__)


class ServerChannel:
    """The channel to one server, replaced when it is lost.

    Args:
        address: HOST:PORT.
        label: the server, for people.
    """

    def __init__(self, address: str, security: Security, label: str) -> None:
        self._address = address
        self._security = security
        self._label = label
        self._window_bytes = WINDOW_BYTES
        self._stamps = security.stamps()
        self._credentials = security.credentials()
        self._replaced: list[Transport] = []
        self._transport = self._make_transport(0)

    def _make_transport(self, number: int) -> Transport:
        window = ("grpc.http2.lookahead_bytes", self._window_bytes)
        options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS, window, *self._security.options(self._address)]
        return Transport(open_channel(self._address, self._credentials, options), number)

    def current(self) -> Transport:
        """What the next call uses: another one if certificates have changed since."""
        stamps = self._security.stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._credentials = self._security.credentials()
            except MoaError as error:  # half of a renewal: the former ones will do until the rest is there
                log.warning("certificates for %s are not read again: %s", self._label, error)
            else:
                self.renew(self._transport.number)
        return self._transport

    def renew(self, lost: int) -> None:
        """Replaces a lost connection: packets lost in an outage delay the old one for seconds after it.

        Args:
            lost: its number; if another conversation has replaced it, nothing happens.
        """
        if lost != self._transport.number:
            return
        before, self._transport = self._transport, self._make_transport(lost + 1)
        before.replace()
        self._replaced = [each for each in (*self._replaced, before) if not each.is_closed]

    def refresh(self) -> None:
        """Replaces a connection that is not there: gRPC would wait before it tries again."""
        if self._transport.is_down:
            self.renew(self._transport.number)

    def widened(self, window_bytes: int) -> ServerChannel:
        """Another channel to the same server.

        Args:
            window_bytes: bytes a call may have in flight to us.
        """
        other = copy(self)
        other._window_bytes, other._replaced = window_bytes, []
        other._transport = other._make_transport(0)
        return other

    async def close(self) -> None:
        """Ends all its connections, and what runs on them."""
        for transport in (*self._replaced, self._transport):
            await transport.close()
