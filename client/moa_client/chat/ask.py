"""Shows the updates of one answer in a view; Ctrl-C ends the answer, not the program.

State: the answers of the conversation as far as their updates were read.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, cast

from moa_client.chat.keys import Permit
from moa_client.chat.views import View
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update, apply_update
from moa_client.conversation.figures import Figures
from moa_client.conversation.options import AnswerOptions
from moa_client.surface.conversation import OpenConversation


async def deny(_: events.CallWanted) -> events.Permission:
    return events.Permission.DENIED


class AnswerFollower:
    """Asks one question after another, and follows each answer to its end.

    Args:
        conversation: with the answers that it has.
        settle_seconds: how long an answer waits for the server that is away before it ends without it; 0: it is decided
            later.
    """

    def __init__(self, conversation: OpenConversation, settle_seconds: float = 0.0, permit: Permit = deny) -> None:
        self._conversation = conversation
        self._permit = permit
        self._settle_seconds = settle_seconds
        self.figures: Figures | None = None  # of the newest answer that has ended
        self._texts = list(conversation.answers)
        self._lost_at: float | None = None  # when the server was lost, on the loop's clock; None: it is there

    async def answer(self, question: str, options: AnswerOptions, view: View) -> tuple[AnswerText, bool]:
        """Asks, and shows what happens; the answer, and False if the user stopped it."""
        return await self._follow(
            AnswerText(question),
            lambda: self._conversation.ask(question, options),
            lambda event, about: isinstance(event, events.Asked) and event.question == question,
            view,
        )

    async def continue_answer(self, text: AnswerText, max_tokens: int, view: View) -> tuple[AnswerText, bool]:
        """The same for the newest answer, which goes on; the view shows what is new."""
        text.seen = len(text.committed)
        return await self._follow(
            text,
            lambda: self._conversation.continue_answer(max_tokens),
            lambda event, about: isinstance(event, events.Continued) and about is text,
            view,
        )

    async def keep(self, text: AnswerText, view: View) -> None:
        """The same for the newest answer, which is again what this device had written of it."""
        begun = AnswerText(text.question)
        await self._follow(begun, self._conversation.keep, lambda event, _: isinstance(event, events.Asked), view)

    async def _follow(
        self,
        text: AnswerText,
        begin: Callable[[], None],
        is_beginning: Callable[[events.SurfaceEvent, AnswerText | None], bool],
        view: View,
    ) -> tuple[AnswerText, bool]:
        """Begins an answer, and shows what happens; the answer, and False if the user stopped it.

        `is_beginning`: whether an event, and the answer that it is about, say so.
        """
        waiting: asyncio.Timeout | None = None
        is_shown = True

        async def stream() -> None:
            nonlocal waiting, text, is_shown
            try:
                view.begin()
                begin()
                async with self.updates() as updates:
                    text = await self._begun(is_beginning, updates, text, view)
                    while await self._show_until(events.Ended, text, updates, view):
                        view.end(text)
                        is_shown = False
                        if (after := await self._after_calls(text, updates, view)) is None:
                            return
                        text, is_shown = after, True
                if self._settle_seconds and text.is_unsettled:
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(self._give_up_at()) as waiting, self.updates() as updates:
                            await self._show_until(events.Settled, text, updates, view, waiting)
            finally:
                if is_shown:
                    view.end(text)

        def stop() -> None:
            if waiting is None:
                self._conversation.stop()
            else:
                waiting.reschedule(asyncio.get_running_loop().time())

        finished = await interruptible(asyncio.ensure_future(stream()), stop, self._conversation.abandon)
        return text, finished

    @asynccontextmanager
    async def updates(self) -> AsyncIterator[AsyncIterator[Update]]:
        async with aclosing(cast("Any", self._conversation.updates())) as updates:
            yield updates

    @property
    def texts(self) -> Sequence[AnswerText]:
        return self._texts

    @property
    def unsettled(self) -> Sequence[AnswerText]:
        """The answers that ended without the server and are not decided yet, oldest first."""
        return [text for text in self._texts if text.is_unsettled]

    def forget(self, answers: int) -> Sequence[AnswerText]:
        """No answer after the first `answers` will be decided; those that are not part of the conversation any more."""
        dropped = [text for text in self._texts if text.number > answers]
        self._texts = [text for text in self._texts if text.number <= answers]
        return dropped

    def take(self, update: Update) -> AnswerText | None:
        """Applies an update; the answer that it is about."""
        if isinstance(update.event, events.LinkChanged):
            self._on_link(update.event)
        if update.figures is not None:
            self.figures = update.figures
        return apply_update(self._texts, update)

    async def _begun(
        self,
        is_beginning: Callable[[events.SurfaceEvent, AnswerText | None], bool],
        updates: AsyncIterator[Update],
        text: AnswerText,
        view: View,
    ) -> AnswerText:
        async for update in updates:
            about, event = self.take(update), update.event
            if about is not None and is_beginning(event, about):
                view.show(update, about)
                return about
            if isinstance(event, events.Failed) and event.taken_back and not update.answer:
                raise event.error
            self._show(update, about, text, view)
        return text

    async def _show_until(
        self,
        last: type[events.Ended | events.Settled],
        text: AnswerText,
        updates: AsyncIterator[Update],
        view: View,
        waiting: asyncio.Timeout | None = None,
    ) -> int:
        """Shows updates up to one of this kind about an answer; how many calls of tools follow.

        `waiting`: runs while the server is unavailable.
        """
        async for update in updates:
            about, event = self.take(update), update.event
            if isinstance(event, events.Failed | events.Refused) and (about is text or self._conversation.is_gone):
                raise event.error
            if isinstance(event, events.Failed) and not update.answer and (event.taken_back or waiting is not None):
                raise event.error  # nothing more will come, or no verdict
            self._show(update, about, text, view)
            if about is text and isinstance(event, last):
                return event.calls if isinstance(event, events.Ended) else 0
            if waiting is not None and isinstance(event, events.LinkChanged):
                waiting.reschedule(None if self._lost_at is None else self._give_up_at())
        return 0

    async def _after_calls(self, text: AnswerText, updates: AsyncIterator[Update], view: View) -> AnswerText | None:
        """Shows what becomes of an answer's calls, and asks about them; the next answer, or None: they are left."""
        asking: asyncio.Task[None] | None = None
        try:
            async for update in updates:
                about, event = self.take(update), update.event
                if (
                    isinstance(event, events.CallDecided | events.CallAnswered | events.CallsLeft)
                    and asking is not None
                ):
                    asking.cancel()  # this surface has said it, or another one
                if isinstance(event, events.Failed) and self._conversation.is_gone:
                    raise event.error
                if isinstance(event, events.Asked) and about is not None:
                    view.begin()
                    view.show(update, about)
                    return about
                self._show(update, about, text, view)
                if isinstance(event, events.CallsLeft):
                    return None
                if isinstance(event, events.CallWanted) and event.waits:
                    asking = asyncio.create_task(self._ask_about(event))
        finally:
            if asking is not None:
                asking.cancel()
        return None

    async def _ask_about(self, wanted: events.CallWanted) -> None:
        self._conversation.permit(wanted.call, await self._permit(wanted))

    def _on_link(self, event: events.LinkChanged) -> None:
        if event.state is not events.LinkState.OFFLINE:
            self._lost_at = None
        elif self._lost_at is None:
            self._lost_at = asyncio.get_running_loop().time()

    def _give_up_at(self) -> float:
        """When an answer has waited long enough for the server: the time counts from the loss, if that was seen."""
        now = asyncio.get_running_loop().time()
        return (now if self._lost_at is None else self._lost_at) + self._settle_seconds

    @staticmethod
    def _show(update: Update, about: AnswerText | None, current: AnswerText, view: View) -> None:
        if about is current or not update.answer:
            view.show(update, current)
        elif about is not None and not about.is_running:
            view.show_earlier(update, about)


async def interruptible(answering: asyncio.Future[None], stop: Callable[[], None], abandon: Callable[[], None]) -> bool:
    """Waits for an answer; False if it was interrupted.

    The first Ctrl-C asks the server, which ends the answer cleanly; a second one does not wait for it.
    """
    loop = asyncio.get_running_loop()
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            stop()
        else:
            abandon()
            answering.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await answering
    except asyncio.CancelledError:
        if interrupts < 2:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return not interrupts
