"""Conversations that outlast their program, and ones that are rewound: the text is that of one that never ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from moa_client.conversation.answer_text import AnswerDecoder
from moa_client.conversation.conversation import Turn
from moa_client.conversation.events import Committed, Ended, Event, LinkChanged, LinkState, Provisional, Settled
from moa_client.conversation.options import AnswerOptions
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.history.reading import ConversationOrigin, StoredConversation
from moa_client.history.recorder import HistoryRecorder, restored
from moa_client.history.store import HistoryStore
from moa_client.host.publisher import Publisher
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import Finish

from tests.net.client_device import stepper
from tests.net.client_talk import slow_device, talking
from tests.net.server_peer import make_host, plain_text, serving
from tests.support.told import letters

OPTIONS = AnswerOptions(temperature=0.7, seed=5, max_tokens=20)
QUESTIONS = {"first": [5, 17, 42, 8, 17, 42], "second": [9, 9, 4], "third": [3, 1]}


class Letters:
    """A tokenizer, as far as it makes text."""

    chat_template = ""
    shown = staticmethod(letters)


def turn_of(question: str, _: object = None) -> Turn:
    return lambda _: QUESTIONS[question]


def never(_: Event) -> bool:
    return False


def expected(target: Target, *questions: str, options: AnswerOptions = OPTIONS) -> list[int]:
    """The conversation with the target alone."""
    text: list[int] = []
    for question in questions:
        text += QUESTIONS[question]
        text += plain_text(target, text, options.settings())[0]
    return text


class Program:
    """A client that keeps its conversation."""

    def __init__(self, engine: ClientEngine, recorder: HistoryRecorder, stored: StoredConversation) -> None:
        self.engine = engine
        self.events: list[Event] = []
        self._publisher = Publisher(engine, recorder)
        self._publisher.resume(stored)

    async def ask(self, question: str, killed: Callable[[Event], bool] = never) -> None:
        """Asks, until the answer has ended or the program is killed."""
        answer = self._publisher.begin(question, OPTIONS)
        async with aclosing(self.engine.ask(turn_of(question), OPTIONS.settings())) as events:
            async for event in events:
                self.take(event, answer)
                if killed(event):
                    return

    def rewind(self, answers: int) -> None:
        self.engine.rewind(answers)
        self._publisher.rewind(answers)

    async def settle(self) -> list[Settled]:
        """Waits until the server has decided everything."""
        while self.engine.unsettled:
            async for event in self.engine.settle():
                self.take(event)
        return [event for event in self.events if isinstance(event, Settled)]

    def take(self, event: Event, answer: AnswerDecoder | None = None) -> None:
        self._publisher.on_engine_event(event, answer)
        self.events.append(event)


class Life:
    """One program after another, over one history and one server."""

    def __init__(self, target: Target, running: RunningServer, folder: Path) -> None:
        self.store = HistoryStore(folder)
        self.running = running
        self._target = target
        self._identifier = self.store.create(ConversationOrigin("tiny"))

    @asynccontextmanager
    async def program(
        self, settings: DraftingSettings | None = None, *, offline: bool = False
    ) -> AsyncIterator[Program]:
        held = replace(slow_device(self._target, "chain"), tokenizer=cast("Any", Letters()))
        address = f"127.0.0.1:{self.running.port}"
        async with talking(self._target, address, settings, offline=offline, held=held) as engine:
            stored = self.store.reopen(self._identifier)
            engine.restore(restored(stored, turn_of))
            yield Program(engine, HistoryRecorder(self.store, self._identifier, engine.conversation, stored), stored)


@pytest.fixture
async def life(target: Target, tmp_path: Path) -> AsyncIterator[Life]:
    async with serving(make_host(target, stepper=stepper(target, 0))) as running:
        made = Life(target, running, tmp_path)
        yield made
        made.store.close()


@pytest.mark.parametrize("kills", [(), (1,), (2,), (1, 2)])
async def test_what_was_written_alone_is_verified_as_if_the_program_had_never_ended(
    target: Target, life: Life, kills: tuple[int, ...]
) -> None:
    async with life.program() as program:
        await program.ask("first")
    questions = ["second", "third"]
    written = []
    for lives in range(len(kills) + 1):
        async with life.program(offline=True) as program:
            assert program.engine.unsettled == 2 - len(questions)
            until = 2 - (kills[lives] if lives < len(kills) else 2)
            while len(questions) > until:
                await program.ask(questions.pop(0))
            written.append([event for event in program.events if isinstance(event, Provisional)])
            if lives == len(kills) and 2 not in kills:
                program.engine.go_online()
                settled = await program.settle()
    if 2 in kills:
        async with life.program() as program:
            settled = await program.settle()
    assert program.engine.conversation.tokens == expected(target, "first", "second", "third")
    texts = [[token for event in events for token in event.tokens] for events in written if events]
    shown = [text[at : at + 20] for text in texts for at in range(0, len(text), 20)]
    assert [(event.finish, event.written, event.changed) for event in settled] == [
        (Finish.MAX_TOKENS, 20, list(event.tokens) != text) for event, text in zip(settled, shown, strict=True)
    ]


async def test_an_answer_that_was_cut_short_is_continued(target: Target, life: Life) -> None:
    seen = 0

    def killed(event: Event) -> bool:
        nonlocal seen
        seen += len(event.tokens) if isinstance(event, Committed) else 0
        return seen > 5

    async with life.program() as program:
        await program.ask("first", killed)
        assert not any(isinstance(event, Ended) for event in program.events)
    async with life.program() as program:
        assert program.engine.unsettled == 1
        assert len(program.engine.conversation.answer) == seen
        [settled] = await program.settle()
    assert program.engine.conversation.tokens == expected(target, "first")
    assert list(settled.tokens) == expected(target, "first")[len(QUESTIONS["first"]) + seen :]
    assert [event.state for event in program.events if isinstance(event, LinkChanged)][:1] == [LinkState.BACK]


async def test_a_conversation_with_provisional_text_in_the_middle_of_an_answer_is_continued(
    target: Target, life: Life
) -> None:
    """Committed text, then text of the device, then a kill."""
    committed: list[int] = []
    shown = 0

    async with life.program() as program:

        def cut_and_kill(event: Event) -> bool:
            nonlocal shown
            if isinstance(event, Committed):
                committed.extend(event.tokens)
                if len(committed) > 3:
                    program.engine.go_offline()
            shown += len(event.tokens) if isinstance(event, Provisional) else 0
            return shown > 5

        await program.ask("first", cut_and_kill)
    async with life.program() as program:
        [settled] = await program.settle()
        await program.ask("second")
    assert settled.written == shown
    assert program.engine.conversation.tokens == expected(target, "first", "second")


async def test_a_rewound_conversation_is_that_of_who_never_asked(target: Target, life: Life) -> None:
    async with life.program() as program:
        await program.ask("first")
        await program.ask("second")
        for question in ("third", "second", "third"):
            program.rewind(1)
            await program.ask(question)
            await program.settle()
            assert program.engine.conversation.tokens == expected(target, "first", question)
        assert len(life.running.host.services.registry) == 1  # its session served all of them
        program.rewind(0)
        await program.ask("second")
        await program.settle()
        assert program.engine.conversation.tokens == expected(target, "second")
