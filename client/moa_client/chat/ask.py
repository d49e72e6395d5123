"""Follows the updates of an answer to its end, and shows them; Ctrl-C ends the answer, not the program.

State: the answers of the conversation as far as their updates were read.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import aclosing
from enum import Enum

from moa_client.chat.keys import Permit
from moa_client.chat.views import View
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update, apply_update
from moa_client.conversation.figures import Figures
from moa_client.conversation.options import AnswerOptions
from moa_client.surface.conversation import OpenConversation


class Phase(Enum):
    BEGINNING = 1
    RUNNING = 2
    CALLING = 3  # it has ended with calls of tools, whose results another answer follows
    SETTLING = 4  # it has ended without the server, which may still come


DECIDING = (events.CallDecided, events.CallAnswered, events.CallsLeft)


class AnswerFollower:
    """Asks one question after another, and follows each answer to its end.

    Args:
        conversation: with the answers that it has.
        permit: says whether a call may be run.
        settle_seconds: how long an answer waits for the server that is away before it ends without it; 0: it is decided
            later.
    """

    def __init__(self, conversation: OpenConversation, view: View, permit: Permit, settle_seconds: float = 0.0) -> None:
        self._conversation = conversation
        self._view = view
        self._permit = permit
        self._settle_seconds = settle_seconds
        self.figures: Figures | None = None  # of the newest answer that has ended
        self.texts = list(conversation.answers)
        self._lost_at: float | None = None  # when the server was lost, on the loop's clock; None: it is there

    async def answer(self, question: str, options: AnswerOptions) -> tuple[AnswerText, bool]:
        """Asks, and shows what happens; the answer, and False if the user stopped it."""
        return await self._follow(
            AnswerText(question),
            lambda: self._conversation.ask(question, options),
            lambda event, about: isinstance(event, events.Asked) and event.question == question,
        )

    async def continue_answer(self, text: AnswerText, max_tokens: int) -> tuple[AnswerText, bool]:
        """The same for the newest answer, which goes on; the view shows what is new."""
        text.seen = len(text.committed)
        return await self._follow(
            text,
            lambda: self._conversation.continue_answer(max_tokens),
            lambda event, about: isinstance(event, events.Continued) and about is text,
        )

    async def keep(self, text: AnswerText) -> None:
        """The same for the newest answer, which is again what this device had written of it."""
        begun = AnswerText(text.question)
        await self._follow(begun, self._conversation.keep, lambda event, _: isinstance(event, events.Asked))

    @property
    def last(self) -> AnswerText | None:
        """The newest answer; None: nothing was asked."""
        return self.texts[-1] if self.texts else None

    @property
    def last_asked(self) -> AnswerText | None:
        """The newest answer to a question of the user, rather than to results of tools; None: nothing was asked."""
        return next((text for text in reversed(self.texts) if not text.options.results), None)

    @property
    def unsettled(self) -> Sequence[AnswerText]:
        """The answers that ended without the server and are not decided yet, oldest first."""
        return [text for text in self.texts if text.is_unsettled]

    def forget(self, answers: int) -> Sequence[AnswerText]:
        """No answer after the first `answers` will be decided; those that are not part of the conversation any more."""
        dropped = [text for text in self.texts if text.number > answers]
        self.texts = [text for text in self.texts if text.number <= answers]
        return dropped

    def take(self, update: Update) -> AnswerText | None:
        """Applies an update; the answer that it is about."""
        if isinstance(update.event, events.LinkChanged):
            is_lost = update.event.state is events.LinkState.OFFLINE
            self._lost_at = (self._lost_at or asyncio.get_running_loop().time()) if is_lost else None
        if isinstance(update.event, events.ModelsChanged):
            self._view.folding.marks = self._conversation.facts.thinking
        if update.figures is not None:
            self.figures = update.figures
        return apply_update(self.texts, update)

    async def _follow(
        self,
        text: AnswerText,
        begin: Callable[[], None],
        is_beginning: Callable[[events.SurfaceEvent, AnswerText | None], bool],
    ) -> tuple[AnswerText, bool]:
        """Begins an answer, and shows what happens; the answer, and False if the user stopped it.

        `is_beginning`: whether an event, and the answer that it is about, say so.
        """
        phase, limit, view = Phase.BEGINNING, asyncio.timeout(None), self._view
        is_shown = True
        asking: asyncio.Task[None] | None = None

        async def stream() -> None:
            nonlocal text, phase, is_shown, asking
            async with limit, aclosing(self._conversation.updates()) as updates:
                view.begin()
                begin()
                async for update in updates:
                    about, event = self.take(update), update.event
                    self._raise_error(update, phase, is_mine=about is text)
                    is_next = phase is Phase.CALLING and isinstance(event, events.Asked)
                    if about is not None and (is_next or (phase is Phase.BEGINNING and is_beginning(event, about))):
                        if is_next:
                            view.begin()
                        text, phase, is_shown = about, Phase.RUNNING, True
                    self._show(update, about, text)
                    if phase is Phase.CALLING:
                        if asking is not None and isinstance(event, DECIDING):
                            asking.cancel()  # this surface has said it, or another one
                        if isinstance(event, events.CallsLeft):
                            return
                        if isinstance(event, events.CallWanted) and event.waits:
                            asking = asyncio.create_task(self._ask_about(event))
                    elif phase is Phase.RUNNING and about is text and isinstance(event, events.Ended):
                        if event.calls:
                            phase, is_shown = Phase.CALLING, False
                            view.end(text)
                        elif not (self._settle_seconds and text.is_unsettled):
                            return
                        else:
                            phase = Phase.SETTLING
                            limit.reschedule(self._give_up_at())
                    elif phase is Phase.SETTLING and isinstance(event, events.LinkChanged):
                        limit.reschedule(None if self._lost_at is None else self._give_up_at())
                    elif phase is Phase.SETTLING and about is text and isinstance(event, events.Settled):
                        return

        async def show() -> None:
            try:
                await stream()
            except TimeoutError:
                if phase is not Phase.SETTLING:
                    raise
            finally:
                if asking is not None:
                    asking.cancel()
                if is_shown:
                    view.end(text)

        def stop() -> None:
            if phase is Phase.SETTLING:
                limit.reschedule(asyncio.get_running_loop().time())
            else:
                self._conversation.stop()

        finished = await interruptible(asyncio.ensure_future(show()), stop, self._conversation.abandon)
        return text, finished

    def _raise_error(self, update: Update, phase: Phase, *, is_mine: bool) -> None:
        """Raises what ends the answer that is followed. `is_mine`: the update is about that."""
        event = update.event
        if not isinstance(event, events.Failed | events.Refused):
            return
        is_about_none = isinstance(event, events.Failed) and not update.answer
        is_taken_back = is_about_none and isinstance(event, events.Failed) and event.taken_back
        ends = {
            Phase.BEGINNING: is_taken_back,
            Phase.RUNNING: is_mine or is_taken_back,
            Phase.CALLING: False,
            Phase.SETTLING: is_mine or is_about_none,  # no verdict will come
        }
        if ends[phase] or self._conversation.is_gone:
            raise event.error

    async def _ask_about(self, wanted: events.CallWanted) -> None:
        self._conversation.permit(wanted.call, await self._permit(wanted))

    def _give_up_at(self) -> float:
        """When an answer has waited long enough for the server: the time counts from the loss, if that was seen."""
        now = asyncio.get_running_loop().time()
        return (now if self._lost_at is None else self._lost_at) + self._settle_seconds

    def _show(self, update: Update, about: AnswerText | None, current: AnswerText) -> None:
        if about is current or not update.answer:
            self._view.show(update, current)
        elif about is not None and not about.is_running:
            self._view.show_earlier(update, about)


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
