"""One conversation in text: questions in, updates out, for any number of surfaces, over a `ClientEngine` in tokens.

State: what is to be done, in order, and the answer under way; its `Publisher` has the answers and the surfaces.
Invariant: one task does one thing at a time: it answers a question, or attends to the link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace

from moa_shared.errors import ConfigError, ConflictError, OverloadedError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import CHAT_DEFAULTS
from moa_shared.tracing import Span, begin_span

from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update, nothing_withdrawn
from moa_client.conversation.conversation import Turn
from moa_client.conversation.events import DrafterChanged, Ended, Failed, LinkState, NotKept, Settled
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions, draw_seed
from moa_client.engine.engine import ClientEngine
from moa_client.failures import told
from moa_client.history.reading import StoredConversation
from moa_client.history.recorder import HistoryRecorder, restored
from moa_client.host.call_rounds import CallRounds
from moa_client.host.publisher import Publisher
from moa_client.host.reasoning import reasoned, reasoning_marks
from moa_client.surface.conversation import Subscription
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.tool import Tool, ToolBox
from moa_client.tools.turns import ConversationTurns

MOST_WAITING = 16  # questions behind the one that is answered
MOST_ROUNDS = 16  # of calls after one question: a small model may call for ever


class TextConversation:
    """One conversation.

    Args:
        facts: names, which `facts` brings up to date.
        system: the system prompt; None: the model's own.
        after_answer: called when an answer is over.
        idle_seconds: how long it keeps its stream while nothing is asked; 0: always.
        journal: keeps what is said, before anybody sees it; None: nothing is kept.
        box: the tools that a new conversation offers, and that run calls; None: there are none.
        spells_marks: the text of answers has the marks of reasoning, also where they are special tokens.
    """

    def __init__(
        self,
        engine: ClientEngine,
        facts: ConversationFacts,
        system: str | None = None,
        after_answer: Callable[[TextConversation], Awaitable[None]] | None = None,
        journal: HistoryRecorder | None = None,
        idle_seconds: float = 0.0,
        box: ToolBox | None = None,
        *,
        spells_marks: bool = True,
    ) -> None:
        self.engine = engine
        self.asked_at = 0.0  # the newest question, by the loop's clock
        self._facts = facts
        self._system = system
        self._turns = self._turns_with(system, box.tools if box is not None else ())
        self._after_answer = after_answer
        self._publisher = Publisher(engine, journal, spells_marks=spells_marks)
        self._rounds = CallRounds(engine, self._publisher, box)
        self.permit = self._rounds.permit
        self._idle_seconds = idle_seconds
        self._is_idle = False
        self._todo: deque[Callable[[], Awaitable[None]]] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._asked = 0  # questions whose answers are not over
        self._is_stopped = False  # the oldest of them is not wanted any more
        self._wanted = asyncio.Event()  # there is something to do
        self._task = asyncio.create_task(self._run())

    # ------------------------------------------------------------ for surfaces

    @property
    def facts(self) -> ConversationFacts:
        device, status = self.engine.device, self.status
        choice = device.drafting.choice
        return replace(
            self._facts,
            target=device.files.target_id,
            server=status.server,
            online=status.state is not LinkState.OFFLINE,
            absent=self.link_reason or self._facts.absent,
            level=device.level,
            exact=device.is_exact,
            drafter=choice.name if choice is not None else "",
            drafter_reason=choice.reason if choice is not None else "",
            standalone=choice.standalone if choice is not None else "",
            companion=device.companion.name if device.companion is not None else "",
            system=self._system,
            sampling=AnswerOptions().decided(device.sampling, CHAT_DEFAULTS).sampling(),
            thinking=reasoning_marks(device.tokenizer),
        )

    @property
    def status(self) -> LinkStatus:
        """The state of the link, and the newest answer's figures."""
        return self.engine.status

    @property
    def answers(self) -> Sequence[AnswerText]:
        return self._publisher.answers

    @property
    def link_reason(self) -> str:
        """Why the link is as it is; empty: it is there."""
        return self._publisher.link_reason

    @property
    def is_answering(self) -> bool:
        """Whether an answer or a call of a tool is under way or waits for its turn, rather than for the user."""
        return self._asked > 0 or bool(self._todo) or self._rounds.is_calling

    def subscribe(self) -> Subscription:
        """All updates from now on, after the calls that wait for permission."""
        subscription = Subscription()
        for event in self._rounds.open_events:
            subscription.push_update(Update(event, len(self.answers)))
        self._publisher.subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        subscription.close()
        if subscription in self._publisher.subscriptions:
            self._publisher.subscriptions.remove(subscription)

    @property
    def watchers(self) -> int:
        return len(self._publisher.subscriptions)

    def ask(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        """Asks; after the answers that are under way.

        `instead_of`: in the place of the answer of this number, and of those after it; 0: after all.
        """
        options = reasoned(self.engine.device, options)
        self.ask_turn(question, self._turn_of(question, options), options, instead_of=instead_of)

    def ask_turn(
        self, question: str, turn: Turn, options: AnswerOptions, *, traceparent: str = "", instead_of: int = 0
    ) -> None:
        """The same for a question whose tokens the caller makes.

        `traceparent`: of the span that it belongs to; empty: none.
        """
        options = options.decided(self.engine.device.sampling, CHAT_DEFAULTS, seed=draw_seed())
        self._check(options)
        self._expect_answer()
        if self._rounds.is_waiting:
            self._rounds.cancel()  # the user wants something else
        span = begin_span("question", traceparent)
        self._do(lambda: self._answer(question, turn, options, span, instead_of))

    def continue_answer(self, max_tokens: int) -> None:
        """Continues the newest answer, as if its limit had been so many tokens more, or asks again about its calls.

        `max_tokens`: 0: as the context allows.
        """
        if self._rounds.is_waiting:
            self._rounds.begin_again(self._turns)
            return
        self._expect_answer()
        span = begin_span("question")
        self._do(lambda: self._continue(max_tokens, span))

    def resume(self, stored: StoredConversation) -> None:
        """Continues a conversation that was kept; to be called before the first question.

        What of it no server has verified is verified at the next contact.
        """
        self._publisher.resume(stored)
        if self.answers:
            self._turns = self._turns_with(self._system, self.answers[0].options.tools)
        self.engine.restore(restored(stored, self._turn_of))

    def stop(self) -> None:
        """Ends the running answer where it is, or the next one before it begins; the server is asked first.

        A call of a tool that waits or runs is cancelled.
        """
        if self._rounds.cancel():
            return
        self._is_stopped = self._asked > 0
        if self._answering is not None:
            self.engine.stop()

    def abandon(self) -> None:
        """Ends the running answer, or the next one, without waiting for the server."""
        if self._rounds.cancel():
            return
        self._is_stopped = self._asked > 0
        if self._answering is not None:
            self._answering.cancel()

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers; 0: begins again."""
        self._do(lambda: self._rewind(answers))

    def keep(self) -> None:
        """Has the newest answer be again what this device had written of it before a server has corrected it."""
        if self.engine.answers.withdrawn is None:
            raise nothing_withdrawn()
        if self._answering is not None:
            self.stop()
        self._do(self._keep)

    def set_system(self, system: str | None) -> None:
        """Sets the system prompt, before the first question."""
        if self.answers or self.is_answering:
            raise ConflictError("The conversation has begun.", hint="Begin another one for another system prompt.")
        turns = self._turns_with(system, self._turns.tools)
        turns.check()
        self._system, self._turns = system, turns

    def set_title(self, title: str) -> None:
        self._facts = replace(self._facts, title=title)
        self._publisher.set_title(title)

    def tell(self, event: DrafterChanged | NotKept) -> None:
        self._publisher.publish(event)

    async def stats(self) -> str:
        """Figures of the newest answer and of what was written without a server, for a person."""
        return self.engine.session_figures.lines()

    async def close(self) -> None:
        """Ends what is under way and says goodbye to the server."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        for subscription in list(self._publisher.subscriptions):
            self.unsubscribe(subscription)
        await self.engine.close()

    # ------------------------------------------------------------ the task

    def _do(self, action: Callable[[], Awaitable[None]]) -> None:
        self._todo.append(action)
        self._wanted.set()
        self.engine.wake()

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            if not self._todo:
                if not await self._attend():
                    await self._wanted.wait()
                continue
            try:
                await self._todo.popleft()()
            except BaseException as error:  # noqa: BLE001 (a drafter that cannot be loaded; the next question can)
                self._publisher.publish(Failed(told(error)))

    async def _attend(self) -> bool:
        """Maintains the link until there is something to do; False if that has failed."""
        try:
            with self._falling_asleep():
                async with aclosing(self.engine.attend(lambda: bool(self._todo) or self._is_idle)) as events:
                    async for event in events:
                        self._publisher.on_engine_event(event)
                        if isinstance(event, Settled):
                            self._rounds.leave(self._turns, "The answer calls a tool.")
        except BaseException as error:  # noqa: BLE001
            self._publisher.publish(Failed(told(error)))
            return False
        if self._is_idle and not self._todo:
            await self.engine.sleep()
            return False
        return True

    @contextmanager
    def _falling_asleep(self) -> Iterator[None]:
        """In this block, a conversation that is left alone for long enough becomes idle."""
        self._is_idle = False
        if not self._idle_seconds:
            yield
            return

        def become_idle() -> None:
            self._is_idle = not self.engine.unsettled
            self.engine.wake()

        timer = asyncio.get_running_loop().call_later(self._idle_seconds, become_idle)
        try:
            yield
        finally:
            timer.cancel()

    def _check(self, options: AnswerOptions) -> None:
        options.settings()
        vocab_size = self.engine.conversation.vocab_size
        if strange := [token for token, _ in options.logit_bias if token >= vocab_size]:
            raise ConfigError(
                f"logit_bias names token {strange[0]}, the model has the tokens 0 to {vocab_size - 1}.", hint=""
            )

    def _expect_answer(self) -> None:
        if len(self._todo) >= MOST_WAITING:
            raise OverloadedError(
                f"{MOST_WAITING} questions wait for an answer in this conversation.", hint="Wait for one of them."
            )
        self.asked_at = asyncio.get_running_loop().time()
        self._asked += 1

    async def _answer(self, question: str, turn: Turn, options: AnswerOptions, span: Span, instead_of: int) -> None:
        if instead_of > len(self.answers):
            instead_of = 0  # it was taken back meanwhile
        if instead_of:
            self.engine.rewind(self._publisher.parts(instead_of - 1))
        if not self.answers or instead_of == 1:
            options = replace(options, tools=self._turns.tools)
        await self._follow(turn, self._publisher.begin(question, options, instead_of), span)
        await self._answer_calls()

    async def _continue(self, max_tokens: int, span: Span) -> None:
        """Continues the newest answer: its text is what is committed, its question and its settings are the same.

        Where it has ended with calls that have no answer, these are answered.
        """
        if self._rounds.newest(self._turns):
            self._asked -= 1
            span.end()
            self._rounds.begin_again(self._turns)
            await self._answer_calls()
            return
        if (problem := self._why_not_continued()) is not None:
            self._asked -= 1
            self._is_stopped = False
            span.end()
            self._publisher.publish(Failed(problem, taken_back=True))
            return
        most = max_tokens and len(self.engine.conversation.answer) + max_tokens
        options = replace(self.answers[-1].options, max_tokens=most)
        await self._follow(None, self._publisher.continue_newest(options), span)
        await self._answer_calls()

    def _why_not_continued(self) -> ConflictError | None:
        """Why the newest answer cannot go on; None: it can."""
        if not self.answers:
            return ConflictError("There is no answer to continue.", hint="Ask something first.")
        text = self.answers[-1]
        if text.finish is Finish.CONTEXT:
            return ConflictError("The context is full.", hint="Begin a new conversation.")
        if text.is_unsettled or self.engine.unsettled:
            return ConflictError("The server has not checked the answer yet.", hint="Continue it when it has.")
        if not text.may_continue or not self._publisher.is_part(text):
            return ConflictError("The answer has come to its end.", hint="Ask the next question.")
        return None

    async def _follow(self, turn: Turn | None, answer: AnswerDecoder, span: Span) -> None:
        """Follows an answer to its end. `turn`: the question; None: it is continued."""
        self._answering = asyncio.create_task(self._stream(turn, answer, span.traceparent))
        try:
            await self._answering
        except asyncio.CancelledError:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # the conversation is closed: where it is kept, the answer continues when it is opened again
            self._publisher.break_off(Ended(Finish.CANCELLED), answer)
        except BaseException as error:  # noqa: BLE001 (a defect, too, ends this answer alone)
            self._publisher.break_off(Failed(told(error), taken_back=not answer.text.tokens), answer)
        finally:
            span.end()
            self._answering = None
            self._asked -= 1
            self._is_stopped = False
        if self._after_answer is not None:
            await self._after_answer(self)

    async def _stream(self, turn: Turn | None, answer: AnswerDecoder, traceparent: str) -> None:
        if turn is not None:
            # A long question takes a while, in which other conversations continue; the engine finds it made.
            await asyncio.to_thread(turn, self.engine.conversation.tokens)
        if self._is_stopped:
            self._publisher.break_off(Ended(Finish.CANCELLED), answer)
            return
        settings = answer.text.options.settings()
        async with aclosing(self.engine.ask(turn, settings, traceparent=traceparent)) as events:
            async for event in events:
                self._publisher.on_engine_event(self._rounds.counted(event, answer.text, self._turns), answer)

    # ------------------------------------------------------------ calls of tools

    async def _answer_calls(self) -> None:
        """Answers the calls of the newest answer, and has the next one begin with that, until one calls nothing."""
        for _ in range(MOST_ROUNDS):
            if not (results := await self._rounds.answer(self._turns)):
                return
            before, options = len(self.answers), self.answers[-1].options
            self._asked += 1
            options = replace(options, tools=(), results=results)
            turn = self._turn_of("", options)
            await self._follow(turn, self._publisher.begin("", options), begin_span("question"))
            if len(self.answers) == before:
                return  # it was stopped before it began, or what the tools say does not fit
        self._rounds.leave(self._turns, f"The model has called tools {MOST_ROUNDS} times in a row.")

    async def _keep(self) -> None:
        text = self.answers[-1]
        if self.engine.answers.withdrawn is None or not self._publisher.is_part(text):
            self._publisher.publish(Failed(nothing_withdrawn(), taken_back=True))
            return
        turn, options = self._turn_of(text.question, text.options), text.options
        events = self.engine.keep(turn, options.settings())
        self._publisher.rewind(len(self.answers) - 1)
        answer = self._publisher.begin(text.question, options)
        for event in events:
            self._publisher.on_engine_event(event, answer)

    async def _rewind(self, answers: int) -> None:
        self.engine.rewind(self._publisher.parts(answers))
        self._publisher.rewind(answers)

    def _turn_of(self, question: str, options: AnswerOptions) -> Turn:
        return self._turns.of(question, options.results, options.reasoning_effort)

    def _turns_with(self, system: str | None, tools: Sequence[Tool]) -> ConversationTurns:
        device = self.engine.device
        return ConversationTurns(device.tokenizer, system, device.context_tokens, device.end_of_text, tools)
