"""A server that notes each stream that a replica opens, and is as near and as fast as the other ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moa_client.link.server import Server

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb
    from moa_client.link.rank import ServerRank
    from moa_client.link.stream import Stream, StreamTraffic


@dataclass(frozen=True, slots=True)
class Opening:
    """A stream that a replica has opened.

    Args:
        address: the replica's.
        text: tokens that the conversation had; `cached`: of these, those that the replica need not read.
    """

    address: str
    text: int
    cached: int


class WatchedServer(Server):
    """One replica.

    Args:
        note: called with each stream that it opens.
    """

    def __init__(
        self, address: str, connect_seconds: float, silence_seconds: float, note: Callable[[Opening], object]
    ) -> None:
        self._note = note
        super().__init__(address, connect_seconds, silence_seconds)

    def peer(self, address: str) -> WatchedServer:
        return WatchedServer(address, self.connect_seconds, self.silence_seconds, self._note)

    def rank(self, needs: pb.Identity, unread_tokens: int = 0, *, needs_form: bool = False) -> ServerRank:
        """Only what they would have to read tells replicas apart: times measured on a busy machine are left to chance."""
        known = super().rank(needs, unread_tokens, needs_form=needs_form)
        return replace(known, rtt_ms=1.0, step_ms=1.0, load=0.0, read_ms=1.0)

    async def open(
        self, message: pb.Open, seconds: float | None = None, traffic: StreamTraffic | None = None, session: str = ""
    ) -> tuple[Stream, pb.Opened]:
        stream, opened = await super().open(message, seconds, traffic, session)
        text = max(len(message.tokens), message.ask.base + len(message.ask.tokens))
        self._note(Opening(self.address, text, opened.cached_tokens))
        return stream, opened
