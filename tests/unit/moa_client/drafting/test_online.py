"""Online drafting with a drafter thread that does what the test says, when it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from moa_client.conversation.answer_queue import AnswerQueue, EndRule
from moa_client.conversation.conversation import Conversation
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterThread
from moa_client.drafting.drafters import LookupDrafter
from moa_client.drafting.online import (
    PATIENT_VERDICTS,
    DraftingRest,
    OnlineDrafting,
)
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.drafting.standalone import StandaloneDrafting
from moa_client.drafting.streamed import DraftCompleted, DraftExtended, DraftStep, TokenWritten
from moa_client.engine.inbox import Inbox
from moa_client.memory import MemoryPlan
from moa_shared.drafting import Growth
from moa_shared.errors import ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Draft, Verdict
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

PROMPT = [1, 2, 3]
STREAMED = DraftingSettings(tree=False, run_ahead=True)


class FakeThread:
    """A drafter thread that keeps what it was asked for until the test answers."""

    def __init__(self) -> None:
        self.busy = False
        self.steps: list[DraftStep] = []
        self.rounds: list[int] = []

    def grow(self, step: DraftStep, sampling: Sampling) -> None:
        assert not self.busy
        self.busy = True
        self.steps.append(step)

    def draft(self, committed: int, sampling: Sampling) -> None:
        assert not self.busy
        self.busy = True
        self.rounds.append(committed)


class Bench:
    """Online drafting of one answer, and the frames that it sent."""

    def __init__(self, settings: DraftingSettings, *, drafts: bool = True) -> None:
        self.thread = FakeThread()
        self.memory = MemoryPlan(None, {}, Codec.BF16)
        self.conversation = Conversation(vocab_size=100)
        self.sent: list[Draft | Ack] = []
        thread = self.thread if drafts else None
        self.drafting = OnlineDrafting(settings, self.conversation, thread, self.memory)
        self.drafting.on_opened(server_drafts=False)
        self.conversation.ask(PROMPT, AnswerSettings())
        self.drafting.on_asked()
        self.drafting.mark_synced()  # by the question

    def draft_on(self, now: float = 0.0) -> None:
        self.sent += self.drafting.draft_on(now)

    def complete(self, completed: DraftCompleted) -> None:
        draft = self.drafting.on_completed(completed)
        self.sent += [draft] if draft is not None else []

    def verdict(self, *tokens: int, **fields: Any) -> None:
        held = len(self.conversation.tokens)
        self.drafting.on_verdict(0.0, Verdict(1, held, self.conversation.hashes.short_at(held), tokens, **fields))

    def grown(self, *tokens: int) -> None:
        self.thread.busy = False
        step = self.thread.steps[-1]
        self.drafting.on_extended(0.0, DraftExtended(step, Growth.chain(step.draft, tokens), 1.0))


# ---------------------------------------------------------------- rounds


# ---------------------------------------------------------------- a streamed draft


# ---------------------------------------------------------------- both


def test_a_verdict_that_leaves_a_gap_is_refused() -> None:
    bench = Bench(STREAMED)
    with pytest.raises(ProtocolError, match="a verdict from position 3 or before"):
        bench.drafting.on_verdict(0.0, Verdict(1, 5, 0, [4]))


SERVER_DRAFTED = Verdict(1, 10, 0, (1, 2), drafted=3, server_drafted=3, server_accepted=1)
PLAIN = Verdict(1, 10, 0, (1,))


def rest_after(*verdicts: Verdict, may_rest: bool = True, server_drafts: bool = True) -> DraftingRest:
    rest = DraftingRest(may_rest=may_rest)
    rest.on_opened(server_drafts=server_drafts)
    for verdict in verdicts:
        rest.on_verdict(verdict)
    return rest


def test_a_server_that_has_nothing_to_guess_is_left_alone() -> None:
    assert rest_after(*[PLAIN] * 2 * PATIENT_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[PLAIN] * 2 * PATIENT_VERDICTS).rests


END_OF_TEXT = 9
ALWAYS = StandaloneRule("always")


class StandaloneFakeThread:
    """Remembers what it is asked to write; the test posts the token."""

    def __init__(self, *, may_begin: bool = False) -> None:
        self.busy = False
        self.may_begin = may_begin
        self.told: list[list[int]] = []
        self.asked: list[tuple[int, list[int]]] = []

    def tell(self, tokens: Sequence[int]) -> int:
        self.told.append(list(tokens))
        return len(tokens)

    def write(self, serial: int, written: Sequence[int], sampling: Sampling) -> None:
        assert not self.busy
        self.busy = True
        self.asked.append((serial, list(written)))


class Writer:
    """A device that is on its own after the question `PROMPT`.

    Args:
        is_read: the server has begun the answer.
        is_companion: the drafter reads the question itself.
    """

    def __init__(
        self,
        rule: StandaloneRule = ALWAYS,
        *,
        has_drafter: bool = True,
        is_read: bool = False,
        is_companion: bool = False,
    ) -> None:
        self.answers = AnswerQueue(Conversation(50), EndRule(frozenset({END_OF_TEXT}), 1000, str))
        self.answers.begin(lambda _: PROMPT, AnswerSettings(max_tokens=20))
        if is_read:
            self.answers.conversation.keep((8,), Finish.UNFINISHED)
        self.thread = StandaloneFakeThread(may_begin=is_companion)
        thread = cast("DrafterThread", self.thread) if has_drafter else None
        self.drafting = StandaloneDrafting(self.answers, thread, MemoryPlan(None, {}, Codec.INT4), rule)
        self.now = 1000.0

    def write(self, token: int | None, chance: float = 1.0) -> None:
        """One step: the drafter writes this token."""
        self.drafting.write_on(self.now)
        serial, written = self.thread.asked[-1]
        self.thread.busy = False
        self.drafting.on_written(self.now, TokenWritten(serial, len(written), token, chance))

    @property
    def written(self) -> list[int]:
        assert self.answers.front is not None
        return self.answers.front.written


@pytest.fixture
def writer() -> Writer:
    writer = Writer()
    writer.drafting.begin()
    return writer


def test_a_drafter_with_nothing_to_say_is_not_asked_again_before_it_may_have_something(writer: Writer) -> None:
    writer.write(None)
    assert not writer.drafting.can_write
    writer.drafting.write_on(writer.now)
    assert len(writer.thread.asked) == 1
    writer.drafting.renew()
    assert writer.drafting.can_write
    writer.write(4)
    assert writer.written == [4]


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
