"""Which server of a fleet one conversation should go to, and the search for one after a loss.

State: what the conversation and its running answer need, and what the servers hold of its text, as they have said.
Invariant: a server that serves the conversation is left between answers only for one that is clearly better (rank.py),
or that can hold the next answer to its form. After a loss all are asked at once; the former server, which has the text
in its cache, is given a moment to answer, since most streams are lost with the network and not with the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.link.fleet import Fleet, refusal
from moa_client.link.rank import ServerRank, is_clearly_better
from moa_client.link.server import Server

ANSWER_SECONDS = 0.1  # that one server may answer later than another, or two round trips


class ServerChoice:
    """Ranks the servers of a fleet for one conversation. `text`: of the conversation, as it is at any time."""

    def __init__(self, fleet: Fleet, text: PrefixHashes) -> None:
        self.fleet = fleet
        self.needs = pb.Identity()  # of the newest Open: what a server must have
        self.needs_form = False  # the answer must have a form
        self._text = text
        self._cached: dict[str, int] = {}  # tokens of the text that a server holds, by address; the text only grows
        self._serving = ""  # the address of the server that has served it last, and so holds all of it

    @property
    def model(self) -> pb.Identity:
        """What the conversation needs; before it has begun, what the fleet is for."""
        return self.needs if self.needs.target_fingerprint else self.fleet.model or self.needs

    def rank(self, server: Server) -> ServerRank:
        return server.rank(self.model, self._unread(server), needs_form=self.needs_form)

    def has_model(self, server: Server) -> bool:
        """Whether it is known to serve the conversation's model."""
        return bool(self.rank(server).has_model)

    def is_avoided(self, server: Server) -> bool:
        return self.rank(server).is_avoided(time.monotonic())

    def best(self, servers: Sequence[Server]) -> Server:
        return self.fleet.best(servers, self.model, self._unread, needs_form=self.needs_form)

    def better_than(self, server: Server) -> Server | None:
        best = self.best(self.fleet.servers)
        if best is server or not is_clearly_better(self.rank(best), self.rank(server), time.monotonic()):
            return None
        return best

    def on_served(self, server: Server) -> None:
        """The server serves the conversation from now on, and so holds all of its text."""
        self._serving = server.address

    async def ask(self, server: Server, seconds: float | None = None) -> None:
        """Asks a server what it serves, how busy it is, and how much of the text it holds."""
        served = await server.ask(seconds, self._text.named())
        self._cached[server.address] = served.cached_tokens

    async def first(self) -> Server:
        """The server for the first stream: all that can be had are asked who holds how much of the text.

        Only where that may save more time than it takes: no text that is read within a round trip is asked about.
        """
        best = self.best(self.fleet.servers)
        servers = [each for each in self.fleet.servers if each.error is None and self.has_model(each)]
        read_ms = len(self._text) * max((self.rank(each).read_ms for each in servers), default=0.0)
        if len(servers) < 2 or not self._text.named() or read_ms <= (best.rtt_ms or 0.0):
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
        if server.address == self._serving:
            return 0
        return max(0, len(self._text) - self._cached.get(server.address, 0))


ALIKE_SECONDS = 1.0  # that a server of the same execution may answer later than one of another: the text depends on it
ATTEMPT_ROUND_TRIPS = 6  # of an attempt: connection, TLS and Open, and more where a packet is lost


class Search:
    """One search. `former`: the server of the newest attempt."""

    def __init__(self, choice: ServerChoice, former: Server) -> None:
        self._choice = choice
        self._fleet = choice.fleet
        self._former = former
        self._pending: dict[asyncio.Task[None], Server] = {}  # who has not answered yet
        self._found: list[Server] = []  # who has, and has the model
        self._deadline = 0.0  # seconds, monotonic

    async def run(self, seconds: float) -> Server:
        """The former server if it answers first or nearly so, else the best that does.

        `seconds`: how long to wait, at least.
        """
        servers = list(self._fleet.servers)
        seconds = max(seconds, *map(attempt_seconds, servers))
        self._deadline = time.monotonic() + seconds
        self._pending = {asyncio.create_task(self._choice.ask(each, seconds)): each for each in servers}
        try:
            while self._pending and await self._hear():
                if self._former in self._willing:
                    return self._former
                if self._is_decided():
                    break
                self._hurry()
        finally:
            for task in self._pending:
                task.cancel()
            await asyncio.gather(*self._pending, return_exceptions=True)
        return self._outcome(servers)

    async def _hear(self) -> bool:
        """Waits for the next answers, or failures; False if none has come in time."""
        rest = max(0.0, self._deadline - time.monotonic())
        done, _ = await asyncio.wait(self._pending, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        answered = {task: self._pending.pop(task) for task in done}
        self._found += [
            each for task, each in answered.items() if task.exception() is None and self._choice.has_model(each)
        ]
        return bool(done)

    @property
    def _willing(self) -> list[Server]:
        return [each for each in self._found if not self._choice.is_avoided(each)]

    @property
    def _alike(self) -> list[Server]:
        return [each for each in self._willing if self._choice.rank(each).has_execution]

    def _is_decided(self) -> bool:
        """Whether no answer is worth waiting for, not even that of the former server."""
        is_former_out = self._choice.is_avoided(self._former) or self._former not in self._pending.values()
        return bool(self._alike) and is_former_out

    def _hurry(self) -> None:
        """Once there is a server to go to, the others have only a moment."""
        if any(each.served is not None and each.served.load < 1 for each in self._found):
            grace = max(ANSWER_SECONDS if self._alike else ALIKE_SECONDS, 2e-3 * (self._former.rtt_ms or 0.0))
            self._deadline = min(self._deadline, time.monotonic() + grace)

    def _outcome(self, servers: list[Server]) -> Server:
        self._fleet.log_left_out(self._choice.model)
        if self._found:
            return self._choice.best(self._found)
        if not self._pending and all(each.error is None and each.served is not None for each in servers):
            raise MismatchError("No server serves the conversation's model.", hint="")
        raise refusal(self._fleet.servers, self._choice.model)


def attempt_seconds(server: Server) -> float:
    """How long an attempt at a server may take, at least."""
    return ATTEMPT_ROUND_TRIPS * (server.rtt_ms or 0.0) / 1e3
