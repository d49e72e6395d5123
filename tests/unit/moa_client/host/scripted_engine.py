"""Takes the place of a `ClientEngine`: what happens is what a test tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from unittest.mock import AsyncMock

from moa_client.conversation.conversation import Turn
from moa_client.conversation.events import Committed, Ended, Event, LinkState
from moa_client.conversation.figures import Figures, LinkStatus
from moa_shared.protocol.messages import AnswerSettings, Finish

from tests.support.answer_events import PlainTokenizer, letters


class ScriptedEngine:
    """Tells what it is told to; `ask` until `Ended` or an exception, `attend` between questions.

    State: what was not told yet, and what was asked of it.
    """

    def __init__(self) -> None:
        target = SimpleNamespace(
            tokenizer=PlainTokenizer(),
            decode=letters,
            files=SimpleNamespace(target_id="tiny"),
            identity=SimpleNamespace(target_fingerprint=b"t", tokenizer_hash=b"k"),
            execution=None,
            level="",
            is_exact=True,
            context_tokens=1000,
            end_of_text=frozenset(),
            sampling={},
        )
        self.device = SimpleNamespace(target=target, choice=None, companion=None)
        self.figures = Figures()
        self.tokens: list[int] = []  # as many as are committed
        self.conversation = SimpleNamespace(tokens=self.tokens, answer=[], vocab_size=1000)
        self.turns: list[str] = []  # texts of the questions, as they were put to the server
        self.settings: list[AnswerSettings] = []
        self.done: list[str] = []  # what else was asked of it, in order
        self.answers = SimpleNamespace(withdrawn=None, unsettled=0, keep=self._keep)
        self.connection = SimpleNamespace(drop=AsyncMock())
        self.availability = SimpleNamespace(wants_offline=False)
        self._script: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

    @property
    def status(self) -> LinkStatus:
        return LinkStatus(LinkState.GOOD, 1.0, 0.0, 0.0, 0, 0, server="host:1")

    def tell(self, *happenings: Event | BaseException) -> None:
        """What happens next; an exception ends the answer, or the attending."""
        for each in happenings:
            self._script.put_nowait(each)

    async def ask(
        self, turn: Callable[[Sequence[int]], Sequence[int]] | None, settings: AnswerSettings, *, traceparent: str = ""
    ) -> AsyncGenerator[Event, None]:
        new = turn(self.tokens) if turn is not None else ()
        self.turns.append("".join(map(chr, new)))
        self.settings.append(settings)
        self.figures = Figures()
        is_over = False
        try:
            async for event in self._happenings():
                if isinstance(event, Committed):
                    if not self.figures.tokens:
                        self.tokens += new
                        self.conversation.answer = [] if turn is not None else self.conversation.answer
                    self.tokens += event.tokens
                    self.conversation.answer = [*self.conversation.answer, *event.tokens]
                    self.figures.tokens += len(event.tokens)
                is_over = isinstance(event, Ended)
                yield event
                if is_over:
                    return
        finally:
            if not is_over:
                self.done.append("broken off")

    async def attend(self, is_over: Callable[[], bool]) -> AsyncGenerator[Event, None]:
        async for event in self._happenings(is_over):
            yield event

    def wake(self) -> None:
        self._script.put_nowait(None)

    go_offline = go_online = write_standalone = wake

    def stop(self) -> None:
        self.done.append("stop")

    def _keep(self, _: object, turn: Turn, settings: AnswerSettings) -> Sequence[Event]:
        self.done.append("keep " + "".join(map(chr, turn(self.tokens))))
        return [Committed((1, 2, 3)), Ended(Finish.CANCELLED)]

    def rewind(self, answers: int) -> None:
        self.done.append(f"rewind {answers}")
        if not answers:
            self.tokens.clear()

    async def close(self) -> None:
        self.done.append("close")

    async def _happenings(self, is_over: Callable[[], bool] = lambda: False) -> AsyncGenerator[Event, None]:
        while not is_over():
            each = await self._script.get()
            if isinstance(each, BaseException):
                raise each
            if each is not None:
                yield each
