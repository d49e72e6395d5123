"""Clients that ask without end, each with the program's own engine, a link and a drafter of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from moa_client.conversation.events import Committed
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_shared.errors import MoaError
from moa_shared.protocol.memory_codec import Codec

from moa_bench.fleet.asked import Asked, Opening
from moa_bench.harness.split_client import SETTLE_EVERY_S

if TYPE_CHECKING:
    from moa_client.device.loading import Device
    from moa_client.link.routing.route import AnyLink
    from moa_shared.protocol.finish_rule import AnswerSettings

LOST_S = 120.0  # an answer that takes longer is lost: whoever waits for it has left
REST_S = 0.1  # between looks at whether a client that rests is to ask again
Connect = Callable[[int, Callable[[Opening], None]], "AnyLink"]


class Clients:
    """All of them.

    Args:
        connect: makes the link of the client with this number, which tells of its streams.
        devices: one for each client.
        questions: a prompt and its settings for each text; clients take them in turn.
        vocab_size: of the target.
        session_answers: after so many a client opens another link, as a program that is started does; None: never.
        think_s: that a client waits after an answer, on average, exponentially distributed: without it all clients go
            in step.
    """

    def __init__(
        self,
        connect: Connect,
        devices: Sequence[Device],
        questions: Sequence[tuple[Sequence[int], AnswerSettings]],
        vocab_size: int,
        *,
        session_answers: int | None = None,
        think_s: float = 0.0,
    ) -> None:
        self.asked: list[Asked] = []
        self.active = len(devices)  # the first so many ask; the others rest
        self._connect = connect
        self._devices = devices
        self._questions = questions
        self._vocab_size = vocab_size
        self._session_answers = session_answers
        self._think_s = think_s

    async def ask_until(self, is_over: Callable[[], bool]) -> None:
        """Asks; answers under way are finished."""
        async with asyncio.TaskGroup() as group:
            for number, device in enumerate(self._devices):
                group.create_task(self._ask_on(number, device, is_over))

    async def _ask_on(self, client: int, device: Device, is_over: Callable[[], bool]) -> None:
        text = client
        while not is_over():
            if client >= self.active:
                await asyncio.sleep(REST_S)
                continue
            text = await self._hold_session(client, device, text, is_over)

    async def _hold_session(self, client: int, device: Device, text: int, is_over: Callable[[], bool]) -> int:
        """Answers over one link; gives the number of the next text."""
        asked = Asked(client, text % len(self._questions), time.perf_counter())
        self.asked.append(asked)
        link = self._connect(client, lambda opening: self._last_of(client).openings.append(opening))
        answers = 0
        try:
            with suppress(MoaError):  # nobody is there: the engine tries again, as the program's does
                await link.describe()
            while True:
                await self._ask(asked, link, device)
                text, answers = text + 1, answers + 1
                if self._think_s:
                    await asyncio.sleep(random.Random(f"{client}:{text}").expovariate(1 / self._think_s))
                if is_over() or client >= self.active or answers == self._session_answers:
                    return text
                asked = Asked(client, text % len(self._questions), time.perf_counter())
                self.asked.append(asked)
        finally:
            await link.close()

    def _last_of(self, client: int) -> Asked:
        return next(each for each in reversed(self.asked) if each.client == client)

    async def _ask(self, asked: Asked, link: AnyLink, device: Device) -> None:
        prompt, settings = self._questions[asked.text]
        engine = ClientEngine(link, device, self._vocab_size, Codec.INT4, DraftingSettings())
        try:
            async with asyncio.timeout(LOST_S):
                await _read(engine, prompt, settings, asked)
            asked.tokens = tuple(engine.conversation.answer)
        except MoaError as error:
            asked.failure = str(error)
        except TimeoutError:
            asked.failure = f"It was not whole after {LOST_S:g} s."
        finally:
            asked.ended_s = time.perf_counter()
            await engine.close()


async def _read(engine: ClientEngine, prompt: Sequence[int], settings: AnswerSettings, asked: Asked) -> None:
    """Reads an answer to its end."""

    def note(tokens: int) -> None:
        asked.arrivals_s.append(time.perf_counter())
        asked.counts.append(tokens)

    async for event in engine.ask(prompt, settings):
        if isinstance(event, Committed):
            note(len(event.tokens))
    while engine.unsettled:  # it ended without the server
        async for _ in engine.settle():
            note(max(0, len(engine.conversation.answer) - sum(asked.counts)))
        await asyncio.sleep(SETTLE_EVERY_S)
