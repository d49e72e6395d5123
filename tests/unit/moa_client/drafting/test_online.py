"""Online drafting with a drafter thread that does what the test says, when it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterThread, TokenWritten
from moa_client.drafting.drafters import LookupDrafter
from moa_client.drafting.online import PATIENT_VERDICTS, DraftingRest
from moa_client.drafting.settings import StandaloneRule
from moa_client.drafting.standalone import StandaloneDrafting
from moa_client.engine.resuming import Inbox
from moa_client.memory import MemoryPlan
from moa_shared.protocol.finish_rule import AnswerSettings, FinishRule
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Verdict
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

SERVER_DRAFTED = Verdict(1, 10, 0, (1, 2), drafted=3, server_drafted=3, server_accepted=1)
PLAIN = Verdict(1, 10, 0, (1,))


@pytest.mark.parametrize("before", [(), (SERVER_DRAFTED,)], ids=["never", "once"])
def test_a_server_that_has_nothing_to_guess_is_left_alone(before: Sequence[Verdict]) -> None:
    rest = DraftingRest(may_rest=True)
    for verdict in (*before, *[PLAIN] * 2 * PATIENT_VERDICTS):
        rest.on_verdict(verdict)
    assert rest.rests


def test_a_drafter_with_nothing_to_say_is_not_asked_again_before_it_may_have_something() -> None:
    answers, asked = (
        OpenAnswers(Conversation(50), FinishRule(AnswerSettings(), 0, 1000, frozenset({9}), str)),
        list[tuple[int, int]](),
    )
    answers.begin(lambda _: [1, 2, 3], AnswerSettings(max_tokens=20))

    def write(serial: int, written: Sequence[int], sampling: Sampling) -> None:
        asked.append((serial, len(written)))

    thread = cast("DrafterThread", SimpleNamespace(busy=False, may_begin=False, tell=len, write=write))
    drafting = StandaloneDrafting(answers, thread, MemoryPlan(None, {}, Codec.INT4), StandaloneRule("always"))
    drafting.begin()
    drafting.write_on(1000.0)
    drafting.on_written(1000.0, TokenWritten(*asked[-1], None))
    assert not drafting.can_write
    drafting.write_on(1000.0)
    assert len(asked) == 1
    drafting.renew()
    assert drafting.can_write
    drafting.write_on(1000.0)
    drafting.on_written(1000.0, TokenWritten(*asked[-1], 4))
    assert answers.front is not None
    assert answers.front.written == [4]


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
    thread = DrafterThread(reader, inbox.put_nowait, executor)
    thread.tell([1, 2, 3])
    thread.write(5, [], Sampling())
    other = executor.submit(lambda: reader.done.append("another's"))
    assert await inbox.get() == TokenWritten(5, 0, 7)
    await other
    assert reader.done == ["restart", "read", "another's", "read", "read", "write"]
    await asyncio.to_thread(executor.close)


async def test_a_text_is_read_ahead_while_nothing_is_asked() -> None:
    reader = Reader(3)
    thread = DrafterThread(reader, Inbox().put_nowait)
    thread.tell([1, 2, 3])
    async with asyncio.timeout(10.0):
        await reader.is_read.wait()
    assert reader.done == ["restart", "read", "read", "read"]
    thread.close()
