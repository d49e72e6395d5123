"""Several answers to one question or more, followed as one: they begin together, and one that fails ends all.

The server reads a question once, because conversations that begin alike share what was read of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from moa_shared.errors import MoaError

from moa_client.endpoint.answering import Answering
from moa_client.endpoint.progress import ChoicesProgress

SEEDS = 1 << 64


def choice_seed(seed: int, index: int) -> int:
    """The seed of an answer: the first has the request's, so that its text is that of a request for one."""
    return (seed + index) % SEEDS


class ChoicesAnswering:
    """Follows several answers.

    Args:
        starts: begin one each, and set the event `changed` when something has.
    """

    def __init__(self, starts: Sequence[Callable[..., Answering]]) -> None:
        changed = asyncio.Event()
        self._answers = [start(changed=changed) for start in starts]
        self.progress = ChoicesProgress([answer.progress for answer in self._answers])

    async def change(self, seconds: float) -> bool:
        """Waits until something has changed since the last call, at most so long; whether it has."""
        return await self._answers[0].change(seconds)  # they share their event

    def fail(self, error: MoaError) -> None:
        """The answers end here; `close` tells the server."""
        for answer in self._answers:
            answer.fail(error)

    async def close(self) -> None:
        """Ends the answers that are not over."""
        await asyncio.gather(*(answer.close() for answer in self._answers))
