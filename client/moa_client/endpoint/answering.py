"""One answer under way for a request: waits for its turn, asks, and follows the updates as fast as they come.

State: the task that follows, and the answer's progress. What a slow client has not read waits as text, not as events;
so it holds up neither the conversation nor other requests. Invariant: when `close` returns, the server has been told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, cast

from moa_shared.errors import MoaError, UnavailableError

from moa_client.endpoint.answer_slots import AnswerSlots
from moa_client.endpoint.answer_source import OneAnswer
from moa_client.endpoint.progress import AnswerProgress
from moa_client.failures import told


class Answering:
    """Follows one answer.

    Args:
        begin: asks for it; may raise MoaError. None: nothing is asked.
        progress: of the answer.
        slots: bounds how many run.
        prepare: what is done first; may raise MoaError.
        changed: set when something has changed; None: one of its own.
    """

    def __init__(
        self,
        begin: Callable[[], OneAnswer] | None,
        progress: AnswerProgress,
        slots: AnswerSlots,
        prepare: Callable[[], Awaitable[None]] | None = None,
        changed: asyncio.Event | None = None,
    ) -> None:
        self.progress = progress
        self._begin = begin
        self._prepare = prepare
        self._slots = slots
        self._changed = changed or asyncio.Event()
        self._is_leaving = False  # the conversation is being closed, which must not be interrupted
        self._task = asyncio.create_task(self._follow())

    async def change(self, seconds: float) -> bool:
        """Waits until something has changed since the last call, at most so long; whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed

    def fail(self, error: MoaError) -> None:
        """The answer ends here; `close` tells the server."""
        self.progress.fail(error)
        self._changed.set()

    async def close(self) -> None:
        """Ends the answer, if it is not over."""
        if not self._is_leaving:
            self._task.cancel()
        await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))

    async def _follow(self) -> None:
        try:
            async with self._slots.turn():
                if self._prepare is not None:
                    await self._prepare()
                if self._begin is not None:
                    await self._converse(self._begin())
                else:
                    self.progress.end_unasked()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the request gets an answer)
            self.progress.fail(told(error, "The answer"))
        finally:
            self._changed.set()

    async def _converse(self, conversation: OneAnswer) -> None:
        try:
            await self._read(conversation)
        finally:
            self._is_leaving = True
            self._changed.set()
            await conversation.close()

    async def _read(self, conversation: OneAnswer) -> None:
        progress, now = self.progress, asyncio.get_running_loop().time
        progress.begin(conversation.status.state, now())
        try:
            async with asyncio.timeout_at(progress.deadline) as clock:
                async with aclosing(cast("Any", conversation.updates())) as updates:
                    async for update in updates:
                        progress.apply(update, now())
                        self._changed.set()
                        if progress.is_over:
                            return
                        clock.reschedule(progress.deadline)
            progress.fail(UnavailableError("The conversation was closed.", hint="Ask again."))
        except TimeoutError:
            progress.give_up()
