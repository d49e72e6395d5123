"""The search for a server after a loss: all are asked at once, and one that answers continues the conversation.

State: who has answered, who has not, and until when they may. The former server, which has the text in its cache, is
given a moment to answer, since most streams are lost with the network and not with the server.
"""

from __future__ import annotations

import asyncio
import time

from moa_shared.errors import MismatchError

from moa_client.link.left_out import refusal
from moa_client.link.server import Server
from moa_client.link.server_choice import ANSWER_SECONDS, ServerChoice

ALIKE_SECONDS = 1.0  # that a server of the same execution may answer later than one of another: the text depends on it
ATTEMPT_ROUND_TRIPS = 6  # of an attempt: connection, TLS and Open, and more where a packet is lost


class Search:
    """One search.

    Args:
        former: the server of the newest attempt.
    """

    def __init__(self, choice: ServerChoice, former: Server) -> None:
        self._choice = choice
        self._fleet = choice.fleet
        self._former = former
        self._pending: dict[asyncio.Task[None], Server] = {}  # who has not answered yet
        self._found: list[Server] = []  # who has, and has the model
        self._deadline = 0.0  # seconds, monotonic

    async def run(self, seconds: float) -> Server:
        """The former server if it answers first or nearly so, else the best that does.

        Args:
            seconds: how long to wait, at least.
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
        """Those on which the text continues to the letter."""
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
