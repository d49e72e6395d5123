from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterThread
from moa_client.drafting.drafters import LookupDrafter
from moa_client.drafting.streamed import TokenWritten
from moa_client.engine.inbox import Inbox
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree


class Reader(LookupDrafter):
    """Has so many pieces of text to read before it can write, and notes what it does."""

    def __init__(self, pieces: int) -> None:
        super().__init__(1)
        self.pieces = pieces
        self.done: list[str] = []
        self.is_read = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def restart(self, tokens: Sequence[int]) -> None:
        self.done.append("restart")

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        if self.pieces and writes:
            self.pieces -= 1
            self.done.append("read")
            if not self.pieces:
                self._loop.call_soon_threadsafe(self.is_read.set)
        return writes and self.pieces > 0

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        self.done.append("write")
        return 7, 1.0


async def test_a_text_is_read_in_pieces_with_the_calls_of_others_between() -> None:
    reader, inbox, executor = Reader(3), Inbox(), DrafterExecutor()
    thread = DrafterThread(reader, inbox, executor)
    thread.tell([1, 2, 3])
    thread.write(5, [], Sampling())
    other = executor.submit(lambda: reader.done.append("another's"))
    assert await inbox.take(10.0) == TokenWritten(5, 0, 7)
    await other
    assert reader.done == ["restart", "read", "another's", "read", "read", "write"]
    await asyncio.to_thread(executor.close)


async def test_a_text_is_read_ahead_while_nothing_is_asked() -> None:
    reader = Reader(3)
    thread = DrafterThread(reader, Inbox())
    thread.tell([1, 2, 3])
    async with asyncio.timeout(10.0):
        await reader.is_read.wait()
    assert reader.done == ["restart", "read", "read", "read"]
    thread.close()
