"""Ctrl-C while an answer runs; answers that end without the server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa_client.chat.ask import Asker, interruptible
from moa_client.chat.messages import unverified_words
from moa_client.chat.views import PipeView
from moa_client.conversation.events import (
    Committed,
    Ended,
    Event,
    LinkChanged,
    LinkState,
    Outcome,
    Provisional,
    Refused,
    Settled,
)
from moa_client.conversation.jobs import Turn
from moa_client.conversation.transcript import Transcript
from moa_shared.errors import ContextLengthError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.sampling.coupling import Sampling

from tests.support.messages import raises


class Server:
    """An answer that ends when the server hears that it should, if the server hears at all."""

    def __init__(self, *, hears: bool) -> None:
        self.ended = asyncio.Event()
        self.begun = asyncio.Event()
        self.asked = asyncio.Event()
        self.cleaned_up = False
        self._hears = hears

    async def answer(self) -> None:
        self.begun.set()
        try:
            await self.ended.wait()
        finally:
            self.cleaned_up = True

    async def stop(self) -> None:
        self.asked.set()
        if self._hears:
            self.ended.set()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_an_answer_that_ends_by_itself_was_not_interrupted() -> None:
    server = Server(hears=True)
    server.ended.set()
    assert await interruptible(asyncio.ensure_future(server.answer()), server.stop)


async def test_the_first_interrupt_asks_the_server() -> None:
    server = Server(hears=True)
    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(server.answer()), server.stop))
    await server.begun.wait()
    interrupt()
    assert not await waiting
    assert server.asked.is_set()


async def test_the_second_interrupt_does_not_wait_for_it() -> None:
    server = Server(hears=False)
    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(server.answer()), server.stop))
    await server.begun.wait()
    interrupt()
    await server.asked.wait()
    assert not waiting.done()
    interrupt()
    assert not await waiting
    assert server.cleaned_up


async def test_errors_and_cancellation_from_elsewhere_pass_through() -> None:
    async def fail() -> None:
        raise UnavailableError("The server is gone.")

    server = Server(hears=True)
    with pytest.raises(UnavailableError):
        await interruptible(asyncio.ensure_future(fail()), server.stop)
    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(server.answer()), server.stop))
    await server.begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert server.cleaned_up


# ---------------------------------------------------------------- answers that end without the server


class ClientEngine:
    """Answers end without the server; `later` is what happens after that."""

    def __init__(self, *later: Event) -> None:
        self.later = later
        self.waits = asyncio.Event()
        self.settled = 0

    async def ask(self, turn: Turn, settings: AnswerSettings) -> AsyncGenerator[Event, None]:
        yield Committed((0,))
        yield Provisional((1, 2))
        yield Ended(Finish.MAX_TOKENS, provisional=True)

    async def settle(self) -> AsyncGenerator[Event, None]:
        self.settled += 1
        for event in self.later:
            yield event
        if not any(isinstance(event, Settled) for event in self.later):
            self.waits.set()
            await asyncio.Event().wait()

    async def stop(self) -> None:
        raise AssertionError("There is no answer to stop any more.")


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


SETTLED = Settled((1, 3), Outcome.CORRECTED, Finish.MAX_TOKENS)
SETTINGS = AnswerSettings(Sampling(), 8)


class Asked:
    """One question on a pipe."""

    def __init__(self, engine: ClientEngine, settle_seconds: float) -> None:
        self.out: list[str] = []
        self.remarks: list[str] = []
        self.asker = Asker(cast("Any", engine), settle_seconds)

    async def answer(self, question: str = "") -> bool:
        view = PipeView(self.out.append, self.remarks.append, unverified=True)
        return await self.asker.answer(lambda _: [7], SETTINGS, Transcript(decode, question=question), view)

    @property
    def text(self) -> str:
        return "".join(self.out)


async def test_a_single_answer_waits_until_the_server_has_verified_it() -> None:
    asked = Asked(ClientEngine(LinkChanged(LinkState.BACK), SETTLED), 20.0)
    assert await asked.answer()
    assert asked.text == "abd\n"
    assert asked.remarks == ["(the server is back)"]


async def test_it_waits_for_so_long_and_is_then_given_as_it_is() -> None:
    asked = Asked(ClientEngine(), 0.01)
    assert await asked.answer()
    assert asked.text == "abc\n"
    assert asked.remarks[-1] == unverified_words(2, is_printed=True)


async def test_the_time_runs_only_while_the_server_is_away() -> None:
    engine = ClientEngine(LinkChanged(LinkState.BACK), LinkChanged(LinkState.OFFLINE, "cut"))
    asked = Asked(engine, 0.01)
    assert await asked.answer()
    assert asked.remarks[:2] == ["(the server is back)", "(offline: cut)"]
    there = ClientEngine(LinkChanged(LinkState.BACK))
    asked = Asked(there, 0.01)
    waiting = asyncio.ensure_future(asked.answer())
    await there.waits.wait()
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    interrupt()
    await waiting


async def test_an_interrupt_ends_the_waiting() -> None:
    engine = ClientEngine()
    asked = Asked(engine, 20.0)
    waiting = asyncio.ensure_future(asked.answer())
    await engine.waits.wait()
    interrupt()
    assert not await waiting
    assert asked.text == "abc\n"


async def test_in_a_chat_it_is_decided_later() -> None:
    engine = ClientEngine()
    asked = Asked(engine, 0.0)
    assert await asked.answer("first")
    assert await asked.answer("second")
    assert engine.settled == 0
    for question in ("first", "second"):
        earlier = asked.asker.settle(SETTLED)
        assert earlier is not None
        assert (earlier.question, earlier.committed) == (question, "abd")
    assert asked.asker.settle(SETTLED) is None
    assert await asked.answer("third")
    asked.asker.reset()
    assert asked.asker.settle(SETTLED) is None


async def test_an_earlier_answer_that_is_decided_while_another_is_written_is_reported() -> None:
    class Back(ClientEngine):
        async def ask(self, turn: Turn, settings: AnswerSettings) -> AsyncGenerator[Event, None]:
            yield SETTLED
            yield Committed((4,))
            yield Ended(Finish.MAX_TOKENS)

    asked = Asked(ClientEngine(), 0.0)
    await asked.answer("first")
    asked.asker._engine = cast("Any", Back())
    asked.out.clear()
    assert await asked.answer("second")
    assert asked.text == "e\n"
    assert asked.remarks[-1].endswith("From the sentence that changes:\nabd")


async def test_a_single_answer_that_the_server_will_not_verify_is_shown_and_is_an_error() -> None:
    asked = Asked(ClientEngine(Refused(ContextLengthError("Too long."))), 20.0)
    with raises(
        ContextLengthError,
        snapshot("Too long. Shorten the prompt, /reset the conversation, or raise the server's --context-length."),
    ):
        await asked.answer()
    assert asked.text == "abc\n"


async def test_a_refused_answer_is_reported_next_to_the_next_one() -> None:
    asked = Asked(ClientEngine(), 0.0)
    await asked.answer("first")
    earlier = asked.asker.settle(Refused(ContextLengthError("Too long.")))
    assert earlier is not None
    assert earlier.question == "first"
    assert asked.asker.settle(SETTLED) is None
