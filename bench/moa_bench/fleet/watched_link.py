"""A link that notes each stream that a replica opens, and that may lead through an emulated network.

State: none of its own. Invariant: a replica is known by its direct address, whichever way leads there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from moa_client.link.channel import CHANNEL_OPTIONS, Link
from moa_client.link.security import PLAIN, open_channel
from moa_client.link.transport import Transport

from moa_bench.fleet.asked import Opening

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb
    from moa_client.link.stream import Stream, Traffic


class WatchedLink(Link):
    """A link to one replica.

    Args:
        address: its direct address.
        note: called with each stream that it opens.
        ways: the address to call in place of a replica's; those that are missing are called directly.
    """

    def __init__(
        self,
        address: str,
        connect_seconds: float,
        silence_seconds: float,
        note: Callable[[Opening], object],
        ways: Mapping[str, str],
    ) -> None:
        self._note, self._ways = note, ways
        super().__init__(address, connect_seconds, silence_seconds, PLAIN)

    def _make_transport(self, number: int) -> Transport:
        window = ("grpc.http2.lookahead_bytes", self._window_bytes)
        way = self._ways.get(self.address, self.address)
        return Transport(open_channel(way, self._credentials, [*CHANNEL_OPTIONS, window]), number)

    def towards(self, address: str) -> WatchedLink:
        return WatchedLink(address, self.connect_seconds, self.silence_seconds, self._note, self._ways)

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: Traffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        began_s = time.perf_counter()
        stream, opened = await super().open(message, seconds, traffic, session)
        now_s = time.perf_counter()
        text = max(len(message.tokens), message.ask.base + len(message.ask.tokens))
        self._note(Opening(now_s, now_s - began_s, self.address, text, opened.cached_tokens))
        return stream, opened
