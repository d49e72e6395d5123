"""Which server of a fleet one conversation should go to.

State: what the conversation and its running answer need, and what the servers hold of its text. Invariant: a server
that serves the conversation is left between answers only for one that is clearly better (server_rank.py), or that can
hold the next answer to its form.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.link.server_rank import ServerRank, is_clearly_better
from moa_client.link.unread_text import UnreadText

ANSWER_SECONDS = 0.1  # that one server may answer later than another, or two round trips


class ServerChoice:
    """Ranks the servers of a fleet for one conversation.

    Args:
        text: of the conversation, as it is at any time.
    """

    def __init__(self, fleet: Fleet, text: PrefixHashes) -> None:
        self.fleet = fleet
        self.needs = pb.Identity()  # of the newest Open: what a server must have
        self.needs_form = False  # the answer must have a form
        self._text = UnreadText(text)

    @property
    def model(self) -> pb.Identity:
        """What the conversation needs; before it has begun, what the fleet is for."""
        return self.needs if self.needs.target_fingerprint else self.fleet.model or self.needs

    def rank(self, server: Server) -> ServerRank:
        """What is known about a server."""
        return server.rank(self.model, self._unread(server), needs_form=self.needs_form)

    def has_model(self, server: Server) -> bool:
        """Whether it is known to serve the conversation's model."""
        return bool(self.rank(server).has_model)

    def is_avoided(self, server: Server) -> bool:
        """Whether another server is to be tried first."""
        return self.rank(server).is_avoided(time.monotonic())

    def best(self, servers: Sequence[Server]) -> Server:
        """The one to try first."""
        return self.fleet.best(servers, self.model, self._unread, needs_form=self.needs_form)

    def better_than(self, server: Server) -> Server | None:
        """One that is clearly better, if there is one."""
        best = self.best(self.fleet.servers)
        if best is server or not is_clearly_better(self.rank(best), self.rank(server), time.monotonic()):
            return None
        return best

    def on_served(self, server: Server) -> None:
        """The server serves the conversation from now on, and so holds all of its text."""
        self._text.on_served(server.address)

    async def ask(self, server: Server, seconds: float | None = None) -> None:
        """Asks a server what it serves, how busy it is, and how much of the text it holds."""
        served = await server.ask(seconds, self._text.prefix_hashes)
        self._text.on_described(server.address, served.cached_tokens)

    async def first(self) -> Server:
        """The server for the first stream: all that can be had are asked who holds how much of the text.

        Only where that may save more time than it takes: no text that is read within a round trip is asked about.
        """
        text, best = self._text, self.best(self.fleet.servers)
        servers = [each for each in self.fleet.servers if each.error is None and self.has_model(each)]
        read_ms = text.tokens * max((self.rank(each).read_ms for each in servers), default=0.0)
        if len(servers) < 2 or not text.prefix_hashes or read_ms <= (best.rtt_ms or 0.0):
            return best
        asked = {asyncio.create_task(self.ask(each)): each for each in servers}
        try:
            done, _ = await asyncio.wait(asked, timeout=ANSWER_SECONDS + 2e-3 * (best.rtt_ms or 0.0))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return self.best([asked[task] for task in done if task.exception() is None] or self.fleet.servers)

    def _unread(self, server: Server) -> int:
        return self._text.unread(server.address)
