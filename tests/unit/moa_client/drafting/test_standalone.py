"""Standalone text with a drafter thread that does what the test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from moa_client.conversation.answer_queue import AnswerQueue, EndRule
from moa_client.conversation.conversation import Conversation
from moa_client.drafting.drafter_thread import DrafterThread
from moa_client.drafting.settings import StandaloneRule
from moa_client.drafting.standalone import StandaloneDrafting
from moa_client.drafting.streamed import TokenWritten
from moa_client.memory import MemoryPlan
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

PROMPT = [1, 2, 3]
END_OF_TEXT = 9
ALWAYS = StandaloneRule("always")
AUTO = StandaloneRule("auto", least_chance=0.5)


class FakeThread:
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
        self.thread = FakeThread(may_begin=is_companion)
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


class TestTextThatIsTooUnlikely:
    def test_is_shown_when_the_user_asks_for_it(self) -> None:
        writer = Writer(AUTO, is_read=True)
        writer.write(4, 0.4)
        writer.drafting.asked_for = True
        assert not writer.drafting.is_waiting
        writer.write(5, 0.1)
        assert writer.written == [4, 5]
